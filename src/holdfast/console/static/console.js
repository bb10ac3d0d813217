// Loads the parts of a page again when what they show has changed. Without it pages work, and stand still.
"use strict";

(() => {
  const body = document.body;
  const connection = document.getElementById("connection");
  const stale = new Set();

  function show(state) {
    connection.textContent = { live: "Live", lost: "Not connected" }[state] || "";
    connection.dataset.state = state;
  }

  function changed(topic) {
    if (document.hidden) stale.add(topic);
    else htmx.trigger(body, `changed-${topic}`);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    for (const topic of stale) htmx.trigger(body, `changed-${topic}`);
    stale.clear();
  });

  function heard(message) {
    if (message.state) show(message.state);
    if (message.topic) changed(message.topic);
  }

  function direct() {
    const source = new EventSource("/events");
    source.onopen = () => show("live");
    source.onerror = () => show("lost");
    for (const topic of ["overview", "streams", "tasks", "letters", "audit"]) {
      source.addEventListener(topic, () => changed(topic));
    }
  }

  const worker = body.dataset.events;
  if (worker && document.querySelector("[data-live]")) {
    if (window.SharedWorker) {
      const shared = new SharedWorker(worker, { name: "holdfast-events" });
      shared.port.onmessage = (event) => heard(event.data);
      shared.port.start();
      window.addEventListener("pagehide", () => shared.port.postMessage("bye"));
      window.addEventListener("pageshow", (event) => event.persisted && location.reload());
    } else {
      direct();
    }
  }

  // A part that can't be loaded says so, instead of standing still in silence.
  body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status === 401) location.assign("/enter");
    else show("lost");
  });
  body.addEventListener("htmx:sendError", () => show("lost"));

  // One box chooses all others of its table.
  body.addEventListener("change", (event) => {
    const all = event.target.closest("input[data-all]");
    if (!all) return;
    for (const box of all.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = all.checked;
  });
})();
