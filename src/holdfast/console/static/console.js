// Reloads parts of a page after changes. Without it pages work, but don't refresh.
"use strict";

(() => {
  const body = document.body;
  const connection = document.getElementById("connection");
  const topics = ["overview", "streams", "tasks", "letters", "audit", "products"];
  const live = document.querySelector("[data-live]");

  // A reload keeps what a reader has opened, closed or ticked.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name) => name !== "open";
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !(node.type === "checkbox" && node.checked);

  function show(state) {
    connection.textContent = { live: "Live", lost: "Not connected" }[state] || "";
    connection.dataset.state = state;
  }

  function changed(topic) {
    if (!document.hidden) htmx.trigger(body, `changed-${topic}`);
  }

  function heard(message) {
    if (message.state) show(message.state);
    if (message.topic) changed(message.topic);
  }

  // Returns two functions: join the stream of events, and leave it.
  function shared(path) {
    const { port } = new SharedWorker(path, { name: "holdfast-events" });
    port.onmessage = (event) => heard(event.data);
    port.start();
    return [() => port.postMessage("join"), () => port.postMessage("leave")];
  }

  function alone() {
    let source = null;
    const join = () => {
      if (source) return;
      source = new EventSource("/events");
      source.onopen = () => show("live");
      source.onerror = () => show("lost");
      for (const topic of topics) source.addEventListener(topic, () => changed(topic));
    };
    const leave = () => {
      if (source) source.close();
      source = null;
    };
    return [join, leave];
  }

  if (live && body.dataset.events) {
    const [join, leave] = window.SharedWorker ? shared(body.dataset.events) : alone();
    if (!document.hidden) join();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return leave();
      join();
      topics.forEach(changed);
    });
    window.addEventListener("pagehide", leave);
    window.addEventListener("pageshow", (event) => event.persisted && location.reload());
  }

  // A part that can't be loaded shows that the connection is lost.
  body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status === 401) location.assign("/enter");
    else show("lost");
  });
  body.addEventListener("htmx:sendError", () => show("lost"));

  // Buttons of unavailable actions are off: the changing part names them.
  function settle() {
    const part = document.querySelector("[data-off]");
    if (!part) return;
    const off = part.dataset.off.split(" ");
    for (const button of document.querySelectorAll("button[data-does]")) {
      button.disabled = off.includes(button.dataset.does);
      button.title = button.disabled ? button.dataset.whyOff : "";
    }
  }
  settle();
  body.addEventListener("htmx:afterSettle", settle);

  // Times come in UTC. They are shown in the reader's zone; the pointer shows UTC.
  function localize() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      time.title = `${at.toISOString().replace("T", " ").slice(0, 19)} UTC`;
      time.textContent = at.toLocaleString("sv-SE"); // 2026-11-28 14:05:09
    }
  }
  localize();
  body.addEventListener("htmx:afterSettle", localize);

  // One box ticks all boxes of its table.
  body.addEventListener("change", (event) => {
    const all = event.target.closest("input[data-all]");
    if (!all) return;
    for (const box of all.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = all.checked;
  });
})();
