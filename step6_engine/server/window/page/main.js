// The page's parts, put together: where the records come from, which one is shown, and what keys and buttons do.
import { find_model, start_chat } from "./chat.js";
import { draw_batch, draw_blocks, draw_figures, draw_follow, draw_queue, draw_timeline, place_in_timeline } from "./draw.js";
import { follow_live, NeedsKey, read_file, set_key } from "./feed.js";
import { Trace } from "./trace.js";

const by_id = id => document.getElementById(id);

let trace = null;
let place = -1;        // of the record that is shown
let paused = false;    // else the latest is shown
let followed = null;   // a sequence
let from_file = false;
let live = null;       // the AbortController of the feed
let due = false;

function set_source(text, on) {
  by_id("source").textContent = text;
  by_id("source").classList.toggle("on", on);
}

function draw() {
  due = false;
  if (trace === null || trace.records.length === 0) return;
  place = paused ? Math.min(Math.max(place, trace.first), trace.end - 1) : trace.end - 1;
  const slider = by_id("position");
  slider.min = String(trace.first);
  slider.max = String(trace.end - 1);
  slider.value = String(place);
  slider.setAttribute("aria-valuetext", trace.at(place).step < 0 ? "at rest" : `step ${trace.at(place).step}`);
  by_id("pause").textContent = paused ? (from_file ? "Play" : "Go on") : "Pause";
  by_id("pause").setAttribute("aria-pressed", String(paused));
  by_id("back").disabled = place <= trace.first;
  by_id("forward").disabled = place >= trace.end - 1;
  document.body.dataset.step = String(trace.at(place).step);
  document.body.dataset.place = String(place);
  document.body.dataset.records = String(trace.end);
  if (by_id("engine").offsetParent === null && getComputedStyle(by_id("engine")).display === "none") return;
  draw_figures(trace, place);
  draw_timeline(trace, place);
  draw_batch(trace, place, followed, follow);
  draw_queue(trace, place, followed, follow);
  draw_follow(trace, place, followed);
  draw_blocks(trace, place);
}

// At most once for each picture that the screen shows, however many steps came.
function draw_soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
}

function go_to(target) {
  if (trace === null || trace.records.length === 0) return;
  stop_playing();
  paused = true;
  place = Math.min(Math.max(target, trace.first), trace.end - 1);
  draw_soon();
}

// A recorded trace plays as fast as it was.
let playing = 0;
function stop_playing() {
  clearTimeout(playing);
  playing = 0;
}
function play() {
  if (place >= trace.end - 1) place = trace.first;
  by_id("pause").textContent = "Pause";
  const next = () => {
    if (place >= trace.end - 1) return stop_playing(), draw_soon();
    const wait = trace.at(place + 1).begin - trace.at(place).begin;
    ++place;
    draw();
    by_id("pause").textContent = "Pause";
    playing = setTimeout(next, Math.min(1000, Math.max(16, 1000 * wait)));
  };
  playing = setTimeout(next, 0);
}

function pause_or_go_on() {
  if (trace === null || trace.records.length === 0) return;
  if (!from_file) {
    paused = !paused;
  } else if (playing) {
    stop_playing();
  } else {
    return play();
  }
  draw_soon();
}

function follow(id) {
  followed = followed === id ? null : id;
  draw_soon();
}

function begin_trace(header) {
  trace = new Trace(header);
  place = -1;
  followed = null;
}

function take_line(line) {
  if (line !== null && typeof line === "object" && "ladder_trace" in line) begin_trace(line);
  else if (trace === null) throw new Error("expected a trace of ladder, whose first line has \"ladder_trace\"");
  else if (line === null || typeof line !== "object") throw new Error("expected a record");
  else trace.add(line);
}

async function watch() {
  by_id("live").hidden = true;
  from_file = false;
  paused = false;
  stop_playing();
  const mine = live = new AbortController();
  for (let wait = 500; live === mine; wait = Math.min(8000, 2 * wait)) {
    try {
      await follow_live(line => {
        take_line(line);
        draw_soon();
        wait = 500;
      }, () => set_source("live", true), mine.signal);
      set_source("the server has ended the feed", false);
    } catch (error) {
      if (live !== mine) return;
      if (error instanceof NeedsKey) {
        set_source("needs a key", false);
        by_id("key-form").hidden = false;
        return;
      }
      set_source(`not connected: ${error.message}`, false);
    }
    if (live !== mine) return;
    await new Promise(resolve => setTimeout(resolve, wait));
  }
}

async function open_file(file) {
  const feed = live;
  live = null;
  feed?.abort();
  from_file = true;
  stop_playing();
  by_id("file-error").hidden = true;
  by_id("live").hidden = false;
  set_source(`reading ${file.name}`, false);
  trace = null;
  try {
    await read_file(file, take_line);
  } catch (error) {
    by_id("file-error").textContent = `${file.name}: ${error.message}`;
    by_id("file-error").hidden = false;
  }
  set_source(trace === null ? "no trace" : `${file.name}${trace.truncated ? " (truncated)" : ""}${trace.first > 0 ? ", its end" : ""}`, trace !== null);
  if (trace !== null) go_to(trace.first);
}

function show_part(part) {
  document.querySelector("main").dataset.part = part;
  by_id("show-chat").setAttribute("aria-pressed", String(part === "chat"));
  by_id("show-engine").setAttribute("aria-pressed", String(part === "engine"));
  draw_soon();
}

async function connect() {
  try {
    await find_model();
  } catch (error) {
    if (error instanceof NeedsKey) by_id("key-form").hidden = false;
  }
  watch();
}

by_id("pause").addEventListener("click", pause_or_go_on);
by_id("back").addEventListener("click", () => go_to(place - 1));
by_id("forward").addEventListener("click", () => go_to(place + 1));
by_id("latest").addEventListener("click", () => {
  if (from_file && trace !== null) return go_to(trace.end - 1);
  paused = false;
  draw_soon();
});
by_id("position").addEventListener("input", event => go_to(Number(event.target.value)));
by_id("timeline").addEventListener("click", event => {
  if (trace !== null && trace.records.length > 0)
    go_to(place_in_timeline(trace, place, event.offsetX, event.target.clientWidth));
});
by_id("unfollow").addEventListener("click", () => follow(followed));
by_id("file").addEventListener("change", event => {
  if (event.target.files.length > 0) open_file(event.target.files[0]);
  event.target.value = "";
});
by_id("live").addEventListener("click", () => {
  trace = null;
  by_id("file-error").hidden = true;
  set_source("connecting", false);
  watch();
});
by_id("show-chat").addEventListener("click", () => show_part("chat"));
by_id("show-engine").addEventListener("click", () => show_part("engine"));
by_id("key-form").addEventListener("submit", event => {
  event.preventDefault();
  set_key(by_id("key").value);
  by_id("key").value = "";
  by_id("key-form").hidden = true;
  connect();
});
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
  if (event.key === " " && event.target instanceof HTMLButtonElement) return;
  const actions = { " ": pause_or_go_on, ArrowLeft: () => go_to(place - 1), ArrowRight: () => go_to(place + 1),
                    Home: () => go_to(trace?.first ?? 0), End: () => by_id("latest").click() };
  if (actions[event.key] === undefined) return;
  event.preventDefault();
  actions[event.key]();
});
window.addEventListener("resize", draw_soon);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_soon);

start_chat();
connect();
