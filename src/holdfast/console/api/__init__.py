"""The console's JSON API: what programs of any language see and do, described by OpenAPI."""
