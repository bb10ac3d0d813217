// Draws the newest frame of each camera that is in sight, with the boxes and ids of its tracks.
"use strict";

(() => {
  const EVERY_MS = 500;
  const AT_ONCE = 16;
  const COLOURS = ["#ffb454", "#7fd962", "#59c2ff", "#f07178", "#d2a6ff", "#95e6cb"];
  const wall = document.getElementById("wall");
  if (!wall) return;

  const tiles = new Map();
  const inSight = new Set();
  for (const tile of wall.querySelectorAll(".camera")) tiles.set(tile.dataset.key, tile);
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const key = entry.target.dataset.key;
      if (entry.isIntersecting) inSight.add(key);
      else inSight.delete(key);
    }
  });
  for (const tile of tiles.values()) observer.observe(tile);

  function load(path) {
    return new Promise((done) => {
      const image = new Image();
      image.onload = () => done(image);
      image.onerror = () => done(null);
      image.src = path;
    });
  }

  function draw(tile, news, image) {
    const canvas = tile.querySelector("canvas");
    const width = image ? image.naturalWidth : Math.max(320, ...news.tracks.map((track) => track.box[2]));
    const height = image ? image.naturalHeight : Math.max(180, ...news.tracks.map((track) => track.box[3]));
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    if (image) pen.drawImage(image, 0, 0);
    const unit = Math.max(width / 320, 1);
    pen.lineWidth = 2 * unit;
    pen.font = `${Math.round(11 * unit)}px sans-serif`;
    pen.textBaseline = "bottom";
    for (const track of news.tracks) {
      const [left, top, right, bottom] = track.box;
      pen.strokeStyle = pen.fillStyle = COLOURS[track.id % COLOURS.length];
      pen.strokeRect(left, top, right - left, bottom - top);
      pen.fillText(`${track.id}`, left + unit, top > 14 * unit ? top - unit : bottom - unit);
    }
    const count = news.tracks.length;
    const said = `run ${news.run}, frame ${news.frame}, ${count} tracked`;
    canvas.setAttribute("aria-label", `${news.key}: ${said}`);
    tile.querySelector(".camera-place").textContent = said;
    tile.dataset.frame = `${news.run}:${news.frame}`;
  }

  async function take(news) {
    const tile = tiles.get(news.key);
    if (!tile || tile.dataset.frame === `${news.run}:${news.frame}`) return;
    draw(tile, news, news.picture ? await load(news.picture) : null);
  }

  let next = 0;
  async function look() {
    const keys = [...inSight];
    if (keys.length && !document.hidden) {
      // More than fit into one question take turns.
      const some = [];
      for (let n = 0; n < Math.min(AT_ONCE, keys.length); n += 1) some.push(keys[(next + n) % keys.length]);
      next = (next + some.length) % keys.length;
      const query = new URLSearchParams(some.map((key) => ["key", key]));
      try {
        const answer = await fetch(`${wall.dataset.news}?${query}`);
        if (answer.ok) await Promise.all((await answer.json()).map(take));
      } catch {
        // The console is away; the next look may find it.
      }
    }
    setTimeout(look, EVERY_MS);
  }
  look();
})();
