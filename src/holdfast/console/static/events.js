// A shared worker: all pages of this console in one browser share one stream of events, because a browser
// opens no more than six connections to a server.
"use strict";

const pages = new Set();
let source = null;
let state = "";

function tell(message) {
  for (const page of pages) page.postMessage(message);
}

function become(next) {
  if (next === state) return;
  state = next;
  tell({ state });
}

function open() {
  source = new EventSource("/events");
  source.onopen = () => become("live");
  source.onerror = () => {
    become("lost");
    // The browser connects again by itself, unless the console has refused.
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      if (pages.size) setTimeout(() => source || open(), 4000 + Math.random() * 8000);
    }
  };
  for (const topic of ["overview", "streams", "tasks", "letters", "audit"]) {
    source.addEventListener(topic, () => tell({ topic }));
  }
}

self.onconnect = (event) => {
  const page = event.ports[0];
  pages.add(page);
  page.onmessage = (message) => {
    if (message.data !== "bye") return;
    pages.delete(page);
    if (!pages.size && source) {
      source.close();
      source = null;
      state = "";
    }
  };
  if (source) page.postMessage({ state });
  else open();
};
