// Loads the parts of a page again when what they show has changed. Without it pages work, and stand still.
"use strict";

(() => {
  const body = document.body;
  const connection = document.getElementById("connection");
  const topics = ["overview", "streams", "tasks", "letters", "audit", "products"];
  const live = document.querySelector("[data-live]");

  // What a reader has opened, closed or ticked stays so when a part is loaded again.
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

  // Returns what joins the stream of events, and what leaves it.
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

  // A part that can't be loaded says so, instead of standing still in silence.
  body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status === 401) location.assign("/enter");
    else show("lost");
  });
  body.addEventListener("htmx:sendError", () => show("lost"));

  // Buttons that can't do anything now are off: the part that changes says which.
  function settle() {
    const told = document.querySelector("[data-off]");
    if (!told) return;
    const off = told.dataset.off.split(" ");
    for (const button of document.querySelectorAll("button[data-does]")) {
      button.disabled = off.includes(button.dataset.does);
      button.title = button.disabled ? button.dataset.whyOff : "";
    }
  }
  settle();
  body.addEventListener("htmx:afterSettle", settle);

  // Times are UTC; the pointer shows one in the reader's own zone.
  body.addEventListener("mouseover", (event) => {
    const time = event.target.closest("time[datetime]");
    const at = time && !time.title ? new Date(time.dateTime) : null;
    if (at && !isNaN(at)) time.title = at.toLocaleString([], { dateStyle: "full", timeStyle: "long" });
  });

  // One box chooses all others of its table.
  body.addEventListener("change", (event) => {
    const all = event.target.closest("input[data-all]");
    if (!all) return;
    for (const box of all.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = all.checked;
  });
})();
