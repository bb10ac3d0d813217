// A shared worker: all pages of this console in one browser share one stream of events, because a browser
// opens at most six connections to a server.
"use strict";

const pages = new Set();
let source = null;
let state = "";

function send(message) {
  for (const page of pages) page.postMessage(message);
}

function become(next) {
  if (next === state) return;
  state = next;
  send({ state });
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
  for (const topic of ["overview", "streams", "tasks", "letters", "audit", "products"]) {
    source.addEventListener(topic, () => send({ topic }));
  }
}

// Hidden pages leave the stream, so that the console rests too.
function leave(page) {
  pages.delete(page);
  if (pages.size || !source) return;
  source.close();
  source = null;
  state = "";
}

self.onconnect = (event) => {
  const page = event.ports[0];
  page.onmessage = (message) => {
    if (message.data === "leave") return leave(page);
    pages.add(page);
    if (source) page.postMessage({ state });
    else open();
  };
};
