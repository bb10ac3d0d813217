{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "holdfast.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The release's job name in Prometheus, which rules and queries select. */}}
{{- define "holdfast.job" -}}
{{- printf "holdfast/%s/%s" .Release.Namespace .Release.Name }}
{{- end }}

{{/* Labels of all pods of the release. */}}
{{- define "holdfast.releaseLabels" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "holdfast.releaseLabels" . }}
{{- end }}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The image, with a part's own `image` over it. Takes root, image. */}}
{{- define "holdfast.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (default dict .image) }}
{{- $repository := required "image.repository says which image runs" $image.repository }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest | quote }}
{{- else }}
{{- printf "%s:%s" $repository (required "image.tag or image.digest says which image runs" $image.tag) | quote }}
{{- end }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* The values of one group, over those under `nodes`. Takes root, group. */}}
{{- define "holdfast.group" -}}
{{- $group := mergeOverwrite (deepCopy .root.Values.nodes) (default dict .group) }}
{{- $_ := set $group "settings" (mergeOverwrite (deepCopy .root.Values.settings) $group.settings) }}
{{- $_ := set $group "existingSecrets" (concat .root.Values.existingSecrets $group.existingSecrets | uniq) }}
{{- toJson $group }}
{{- end }}

{{/* A Kubernetes quantity as a number. */}}
{{- define "holdfast.quantity" -}}
{{- $number := regexFind "^[0-9.]+([eE][+-]?[0-9]+)?" (toString .) }}
{{- $factors := dict "" 1.0 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- mulf (float64 $number) (get $factors (trimPrefix $number (toString .)) | default 0.0) }}
{{- end }}

{{/* The resources of a container. Takes part, for errors, and resources. */}}
{{- define "holdfast.resources" -}}
{{- range $what, $limit := .resources.limits }}
{{- with get $.resources.requests $what }}
{{- if gt (include "holdfast.quantity" . | float64) (include "holdfast.quantity" $limit | float64) }}
{{- fail (printf "%s.resources: the request of %s is %v, above the limit %v; lower the one, or raise the other" $.part $what . $limit) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml .resources }}
{{- end }}

{{/* Settings as environment variables. Takes root, settings. */}}
{{- define "holdfast.env" -}}
{{- $ttl := default 5 .settings.ttl_s | float64 }}
{{- if ge (default 0 .settings.renew_s | float64) (divf $ttl 2) }}
{{- fail (printf "settings: renew_s is %v and ttl_s is %v; set renew_s below ttl_s / 2, or raise ttl_s" .settings.renew_s $ttl) }}
{{- end }}
- name: HOLDFAST_LOG_FORMAT
  value: {{ default "json" .settings.log_format }}
{{- range $name, $value := omit .settings "log_format" }}
- name: HOLDFAST_{{ upper $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- with .root.Values.peerTls }}
{{- if .secret }}
- name: HOLDFAST_PEER_TLS_CERT
  value: /etc/holdfast/peer-tls/tls.crt
- name: HOLDFAST_PEER_TLS_KEY
  value: /etc/holdfast/peer-tls/tls.key
- name: HOLDFAST_PEER_TLS_CA
  value: /etc/holdfast/peer-tls/ca.crt
- name: HOLDFAST_PEER_TLS_NAME
  value: {{ .name }}
{{- end }}
{{- end }}
{{- end }}

{{/* Metrics can be read from outside the pod only with a token. Takes root, host. */}}
{{- define "holdfast.metricsEnv" -}}
{{- with .root.Values.monitoring.token }}
{{- if .secret }}
- name: HOLDFAST_METRICS_HOST
  value: {{ $.host | quote }}
- name: HOLDFAST_METRICS_PORT
  value: "8751"
- name: HOLDFAST_METRICS_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "holdfast.metricsPort" -}}
{{- if .Values.monitoring.token.secret }}
- name: metrics
  containerPort: 8751
{{- end }}
{{- end }}

{{- define "holdfast.metricsEndpoint" -}}
- port: metrics
  path: /metrics
  interval: {{ .Values.monitoring.interval }}
  {{- if .Values.peerTls.secret }}
  scheme: https
  tlsConfig:
    serverName: {{ .Values.peerTls.name }}
    ca:
      secret: {name: {{ .Values.peerTls.secret }}, key: ca.crt}
  {{- end }}
  authorization:
    credentials: {name: {{ .Values.monitoring.token.secret }}, key: {{ .Values.monitoring.token.key }}}
{{- end }}

{{/* Who reads metrics: a rule of a NetworkPolicy. */}}
{{- define "holdfast.metricsIngress" -}}
{{- if and .Values.monitoring.token.secret .Values.networkPolicy.prometheusFrom }}
- from:
    {{- toYaml .Values.networkPolicy.prometheusFrom | nindent 4 }}
  ports:
    - port: metrics
{{- end }}
{{- end }}

{{/* Where pods may connect to: a NetworkPolicy's types, and its egress rules if any. */}}
{{- define "holdfast.egress" -}}
{{- if .Values.networkPolicy.egress }}
policyTypes: [Ingress, Egress]
egress:
  # Pods use DNS, and connect to each other.
  - ports:
      - {port: 53, protocol: UDP}
      - {port: 53, protocol: TCP}
  - to:
      - podSelector:
          matchLabels:
            {{- include "holdfast.releaseLabels" . | nindent 12 }}
  {{- toYaml .Values.networkPolicy.egress | nindent 2 }}
{{- else }}
policyTypes: [Ingress]
{{- end }}
{{- end }}

{{- define "holdfast.envFrom" -}}
{{- range . }}
- secretRef:
    name: {{ . }}
{{- end }}
{{- end }}

{{/* Settings of every pod: not root, and nothing that isn't needed. Takes root, and account. */}}
{{- define "holdfast.pod" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: false
# Else a service that is called holdfast sets HOLDFAST_PORT.
enableServiceLinks: false
# The program is not process 1, which would be deaf to SIGTERM while it starts, and left with all orphans.
shareProcessNamespace: true
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "holdfast.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "holdfast.scheduling" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.spread }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}

{{/* Mounts of files that change while in use: whole folders, because a subPath never changes. */}}
{{- define "holdfast.peerTlsMount" -}}
{{- if .Values.peerTls.secret }}
- name: peer-tls
  mountPath: /etc/holdfast/peer-tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "holdfast.peerTlsVolume" -}}
{{- if .Values.peerTls.secret }}
- name: peer-tls
  secret:
    secretName: {{ .Values.peerTls.secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "holdfast.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}

{{- define "holdfast.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- .labels | nindent 4 }}
spec:
  maxUnavailable: 1
  # A pod that isn't ready mustn't hold up the drain of its host.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- .selector | nindent 6 }}
{{- end }}

{{- define "holdfast.ingress" -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .name }}
  labels:
    {{- .labels | nindent 4 }}
  {{- with .ingress.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .ingress.tlsSecret }}
  tls:
    - secretName: {{ . }}
      hosts:
        {{- toYaml $.ingress.hosts | nindent 8 }}
  {{- end }}
  rules:
    {{- range .ingress.hosts }}
    - host: {{ . }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ $.name }}
                port:
                  name: http
    {{- end }}
{{- end }}

{{- define "holdfast.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    {{- .labels | nindent 4 }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  selector:
    {{- .selector | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
{{- end }}
