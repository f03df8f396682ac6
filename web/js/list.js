// list.js: the table of live locks. Rows are kept by name and changed in place,
// so that nothing flickers and focus stays where it is. Of a long list only
// those in view are drawn.

import { age, instant, since } from "./clock.js";
import { Countdown } from "./countdown.js";
import { cell, el, pointing, setText, setTitle } from "./dom.js";
import { holding } from "./holding.js";
import { lockHref } from "./route.js";
import { find } from "./shown.js";

// For so long a row that has ended says so before it gives up its place. Where more than so many
// would say it, all go at once.
const leaveMs = 200;
const mostLeaving = 2;

// They go with the update that comes next, or so much later: each time that the rows change takes a frame.
const leaveAloneMs = 100;

// One under the pointer keeps its place for longer: somebody may be about to click there.
const aimedMs = 3000;

// While the pointer moves across the table nothing changes its place, but no longer than this.
const restMs = 120;
const longestMoveMs = 500;

// For so long a row stands out that was just granted.
const freshMs = 1000;

// ended tells whether a name that is missing from an answer is free now. It may
// only be not shown any more, because the search or the end of the page moved.
export function ended(name, { sameSearch, more, lastName }) {
  if (!sameSearch) return false;
  return !more || (lastName !== null && name <= lastName);
}

// Endings is how leases ended whose rows are drawn, by name, until the rows have said it. Of
// other names nobody is told: in a few minutes they may be all that there are.
export class Endings {
  #hows = new Map();

  // note takes what has been heard; drawn has the names of the rows.
  note(ends, drawn) {
    for (const [name, how] of ends) if (drawn.has(name)) this.#hows.set(name, how);
  }

  // of says how the lease ended, undefined if that is not known.
  of(name) {
    return this.#hows.get(name);
  }

  // keep drops all but those of the rows that may still leave.
  keep(drawn, known) {
    for (const name of this.#hows.keys()) if (!drawn.has(name) || find(known, name) === undefined) this.#hows.delete(name);
  }

  get size() {
    return this.#hows.size;
  }
}

class Row {
  #link = el("a", { class: "lock-link" });
  #owner = el("bdi", { class: "owner-text" });
  #others = el("bdi", { class: "others" });
  #mode = el("span", { class: "muted mode" });
  #since = el("time");
  #age = el("span", { class: "age" });
  #acquiredMark = 0;
  #waiting = el("span", { class: "digits" });
  #queue = el("span", { class: "queue-length" }, this.#waiting, el("span", { class: "unit" }, " waiting"));
  #token = el("span", { class: "digits" });
  #lock = null;
  #countdown = new Countdown(false);
  #tokenShown = null;
  #watched = false;
  #freshTill = -Infinity;
  slot = 0; // its place among all, drawn or not
  leavingSince = null; // null while its lock is held

  constructor(name) {
    this.name = name;
    this.#link.textContent = name;
    this.#link.href = lockHref(name);
    this.#link.title = name;
    this.element = el("tr", { role: "row" },
      el("th", { role: "rowheader", scope: "row", class: "name" }, this.#link),
      cell("owner", this.#owner, " ", this.#others, this.#mode),
      cell("waiting", this.#queue),
      cell("since", this.#age, this.#since),
      cell("token", this.#token),
      cell("remaining", el("div", { class: "countdown" }, this.#countdown.bar, this.#countdown.text)),
    );
    this.element.dataset.name = name;
  }

  update(lock, now) {
    if (lock === this.#lock) return;
    this.#lock = lock;
    const { longest, first, token, who, others, shared } = holding(lock);
    setText(this.#owner, who || "\u2014");
    this.#owner.toggleAttribute("data-none", !who);
    setTitle(this.#owner, who || "no owner was given");
    setText(this.#others, others);
    setTitle(this.#others, others);
    const remarks = [lock.mode === "shared" ? shared : "",
      lock.holders.some(({ attached }) => attached) ? "attached" : "",
      lock.holders.some(({ breaksMark }) => (breaksMark ?? null) !== null) ? "given notice" : ""].filter((text) => text !== "");
    this.#mode.hidden = remarks.length === 0;
    setText(this.#mode, remarks.join(", "));
    this.#acquiredMark = first.acquiredMark;
    setText(this.#waiting, String(lock.waiting));
    this.element.toggleAttribute("data-waited", lock.waiting > 0);
    setText(this.#since, since(first.acquired_at, first.storeNow));
    setTitle(this.#since, instant(first.acquired_at));
    if (this.#since.dateTime !== first.acquired_at) this.#since.dateTime = first.acquired_at;
    setText(this.#token, String(token));
    if (this.#tokenShown !== null && this.#tokenShown !== token) this.flash(now);
    this.#tokenShown = token;
    // The page's clock begins when it is opened.
    this.element.toggleAttribute("data-since-opened", lock.holders.some(({ acquiredMark }) => acquiredMark > 0));
    this.#countdown.set(longest.deadline, longest.ttl_ms, now);
    setText(this.#age, age(now - this.#acquiredMark));
  }

  get lock() {
    return this.#lock;
  }

  tick(now) {
    if (this.#freshTill <= now) this.element.classList.remove("fresh");
    if (this.leavingSince !== null) return;
    this.#countdown.tick(now);
    if (this.#watched) setText(this.#age, age(now - this.#acquiredMark));
  }

  // watch says whether the row is in view.
  watch(watched, now) {
    this.#watched = watched;
    this.#countdown.watch(watched, now);
    this.tick(now);
  }

  // mark says whether this lock is open.
  mark(open) {
    this.element.toggleAttribute("data-open", open);
    if (open) this.#link.setAttribute("aria-current", "true");
    else this.#link.removeAttribute("aria-current");
  }

  focus() {
    this.#link.focus();
  }

  // flash marks a new grant. It does not fade: each step would be a frame.
  flash(now) {
    this.#freshTill = now + freshMs;
    this.element.classList.add("fresh");
  }

  // leave says how the lease ended, if it is known.
  leave(now, how) {
    this.leavingSince = now;
    setText(this.#countdown.text, how ?? (this.#countdown.deadline <= now ? "expired" : "ended"));
    this.element.classList.add("leaving");
  }

  // stay calls a row back: the name was granted again while it was leaving.
  stay() {
    this.leavingSince = null;
    this.element.classList.remove("leaving");
  }
}

// Up to so many rows are drawn all at once; of more only those in view and some around
// them, each of one height, so that the others need no more than room.
const allDrawn = 40;
const around = 6;

// A Window is the part of the rows that is drawn: [from, to) of count.
export function windowOf(count, top, height, rowHeight) {
  if (count <= allDrawn || !(rowHeight > 0)) return { from: 0, to: Math.min(count, allDrawn) };
  const first = Math.floor(Math.max(0, -top) / rowHeight);
  const from = Math.max(0, Math.min(first, count) - around);
  return { from, to: Math.min(count, first + Math.ceil(Math.max(0, height - Math.max(0, top)) / rowHeight) + around) };
}

// width is that of a column for texts of so many characters.
const width = (characters) => `${Math.max(8, Math.min(60, characters)) + 4}ch`;

// slots are the locks in their order, but for those that are fixed, which keep their place among all:
// {slot, lock} each, whether they are still among the others or not.
export function slots(locks, fixed) {
  if (fixed.length === 0) return locks;
  const names = new Set(fixed.map(({ lock }) => lock.name));
  const all = locks.filter(({ name }) => !names.has(name));
  for (const { slot, lock } of fixed.toSorted((a, b) => a.slot - b.slot)) all.splice(slot, 0, lock);
  return all;
}

// List is the table. Its rows are made and dropped as they come into view.
export class List {
  #table;
  #body;
  #above = el("tbody", { "aria-hidden": "true", class: "room" });
  #below = el("tbody", { "aria-hidden": "true", class: "room" });
  #rows = new Map(); // those that are drawn, by name
  #shown = []; // the locks that are shown, drawn or not
  #slots = []; // the same, with those in between that keep their place
  #known = []; // all that are known, in the order of the names
  #before = []; // and what was known before
  #beforeEnd = null; // the last of these, if there were others behind it
  #endings = new Endings();
  #marked = null;
  #rowHeight = 0;
  #measured = false; // in the width that the table has now
  #query = null;
  #order = null; // the filters and the order that are shown
  #pointed; // finds what is under the pointer
  #on;
  #later = 0; // the timer of an update that waits for the pointer to rest
  #leaves = 0; // the timer of the rows that are leaving
  #pointer = { x: NaN, y: NaN, movedAt: -Infinity, began: -Infinity };
  #longest = { name: 0, owner: 0 }; // in characters, of what has been drawn
  #pad = 0; // pixels above the first row, which keep the one under the pointer in its place
  #second = 0;
  #inView = new Set();
  #view = new IntersectionObserver((entries) => {
    const now = performance.now();
    for (const { target, isIntersecting } of entries) {
      const { name } = target.dataset;
      if (isIntersecting) this.#inView.add(name);
      else this.#inView.delete(name);
      this.#rows.get(name)?.watch(isIntersecting, now);
    }
    this.#tellView();
  }, { rootMargin: "100px" });

  // onLeft is called when a row that had ended is gone, onView with the names in view.
  constructor(table, body, { onLeft, onView }) {
    this.#table = table;
    this.#body = body;
    this.#on = { left: onLeft, view: onView };
    this.#pointed = pointing(body);
    body.before(this.#above);
    body.after(this.#below);
    let asked = 0;
    const redraw = () => {
      asked ||= requestAnimationFrame(() => {
        asked = 0;
        if (this.#windowed) this.#draw(performance.now());
      });
    };
    addEventListener("scroll", redraw, { passive: true });
    body.addEventListener("pointermove", ({ clientX: x, clientY: y }) => {
      const { x: oldX, y: oldY, movedAt, began } = this.#pointer;
      if (x === oldX && y === oldY) return; // what is below it has moved
      const now = performance.now();
      this.#pointer = { x, y, movedAt: now, began: now - movedAt < restMs ? began : now };
    }, { passive: true });
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === width) return;
      width = contentRect.width;
      this.#measured = false;
      redraw();
    }).observe(table);
  }

  get #windowed() {
    return this.#slots.length > allDrawn;
  }

  // tell notes how leases have ended, by name: their rows say it when they leave.
  tell(ends) {
    this.#endings.note(ends, this.#rows);
  }

  // update shows some of the locks of an answer, in the order of a route. While the pointer
  // moves across the rows it waits.
  update(answer, shown, route, now) {
    const { query, list: { locks, more } } = answer;
    const search = JSON.stringify([query.q, query.prefix, query.filter]);
    const sameSearch = this.#query === search;
    const order = JSON.stringify({ ...route, name: null });
    const anew = this.#order !== order;
    clearTimeout(this.#later);
    const wait = anew ? 0 : this.#moving(now);
    if (wait > 0) {
      this.#later = setTimeout(() => this.update(answer, shown, route, performance.now()), wait);
      return;
    }
    this.#query = search;
    this.#order = order;
    this.#before = sameSearch ? this.#known : locks;
    this.#known = locks;
    this.#shown = shown;
    const lastName = locks.at(-1)?.name ?? null;
    for (const row of [...this.#rows.values()]) {
      if (!sameSearch && row.leavingSince !== null) this.#remove(row);
      if (row.leavingSince !== null || find(locks, row.name) !== undefined || !ended(row.name, { sameSearch, more, lastName })) continue;
      // One that is not known any more under a filter may only meet it no more.
      const how = this.#endings.of(row.name);
      if (how !== undefined || Object.keys(query.filter).length === 0) row.leave(now, how);
    }
    this.#arrange(now, anew);
    this.#endings.keep(this.#rows, locks); // what is drawn now is told of
    this.#before = locks;
    this.#beforeEnd = more ? locks.at(-1)?.name ?? null : null;
  }

  // moving is for how long an update waits, as the pointer moves across the rows.
  #moving(now) {
    const { movedAt, began } = this.#pointer;
    return Math.min(movedAt + restMs, began + longestMoveMs) - now;
  }

  // aimed are the rows that somebody may be about to use: that under the pointer, and that with the
  // focus, undefined where there is none.
  #aimed() {
    const under = this.#pointed("tr");
    const focused = this.#body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    return [under, focused].map((element) => (element === null ? undefined : this.#rows.get(element.dataset.name)));
  }

  // arrange drops the rows that have said how they ended, gives all others their slots, and draws them. When
  // somebody has just asked for another order or filter, no row keeps its place.
  #arrange(now, anew = false) {
    const [under, focused] = anew ? [] : this.#aimed();
    const aimed = under ?? focused;
    const top = aimed?.element.getBoundingClientRect().top;
    const leaving = [];
    for (const row of this.#rows.values()) {
      if (row.leavingSince === null) continue;
      if (find(this.#known, row.name) !== undefined) row.stay();
      else leaving.push(row);
    }
    const aimedTill = this.#pointer.movedAt + aimedMs;
    const others = leaving.filter((row) => row !== under || aimedTill <= now);
    for (const row of others) if (others.length > mostLeaving || row.leavingSince + leaveMs <= now) this.#remove(row);
    const fixed = new Set([...leaving, under, focused].filter((row) => row !== undefined && this.#rows.has(row.name)));
    this.#slots = slots(this.#shown, [...fixed].map((row) => ({ slot: row.slot, lock: find(this.#known, row.name) ?? (row.leavingSince === null ? null : row.lock) })).filter(({ lock }) => lock !== null));
    this.#draw(now, aimed, top);
    clearTimeout(this.#leaves);
    const next = Math.min(...[...fixed].filter(({ leavingSince }) => leavingSince !== null).map((row) => (row === under ? aimedTill : row.leavingSince + leaveMs + leaveAloneMs)));
    if (next < Infinity) {
      this.#leaves = setTimeout(() => {
        this.#arrange(performance.now());
        this.#on.left();
      }, Math.max(next - now, this.#moving(now), leaveAloneMs));
    }
  }

  // draw makes the rows of what is in view, and keeps those that were there; aimed stays at top on
  // the screen.
  #draw(now, aimed, top) {
    const windowed = this.#windowed;
    this.#table.toggleAttribute("data-windowed", windowed);
    if (windowed) this.#table.setAttribute("aria-rowcount", String(this.#slots.length + 1));
    else this.#table.removeAttribute("aria-rowcount");
    const { from, to } = windowOf(this.#slots.length, this.#above.getBoundingClientRect().top, innerHeight, this.#rowHeight);
    const drawn = this.#slots.slice(from, to);
    const names = new Set(drawn.map((lock) => lock.name));
    for (const row of [...this.#rows.values()]) if (!names.has(row.name)) this.#remove(row);
    this.#fit(drawn);
    this.#place(drawn, from, now, aimed);
    if (aimed === undefined) this.#pad = 0;
    this.#room(this.#above, from * this.#rowHeight + this.#pad);
    this.#room(this.#below, (this.#slots.length - to) * this.#rowHeight);
    this.#table.style.overflowAnchor = aimed === undefined ? "" : "none";
    if (aimed?.element.isConnected) this.#settle(aimed.element.getBoundingClientRect().top - top, from);
    if (windowed && !this.#measured && drawn.length > 0) {
      const { height } = this.#body.getBoundingClientRect();
      if (height === 0) return; // it is hidden
      this.#rowHeight = height / this.#rows.size;
      this.#measured = true;
      this.#draw(now, aimed, top);
    }
  }

  // fit has the columns of names and owners be as wide as the longest needs, as far as there is room. They
  // don't get narrower again, or they would never rest.
  #fit(drawn) {
    const { name, owner } = this.#longest;
    for (const lock of drawn) {
      this.#longest.name = Math.max(this.#longest.name, lock.name.length);
      const { who, others } = holding(lock);
      this.#longest.owner = Math.max(this.#longest.owner, who.length + others.length);
    }
    if (name !== this.#longest.name) this.#table.style.setProperty("--names", width(this.#longest.name));
    if (owner !== this.#longest.owner) this.#table.style.setProperty("--owners", width(this.#longest.owner));
  }

  // settle undoes that a row has moved by so many pixels: those above it may be higher now, or lower.
  #settle(moved, from) {
    if (Math.abs(moved) < 1) return;
    const pad = this.#pad - moved;
    this.#pad = Math.max(0, pad);
    this.#room(this.#above, from * this.#rowHeight + this.#pad);
    if (pad < 0) scrollBy({ top: -pad, behavior: "instant" });
  }

  #place(drawn, from, now, aimed) {
    let before = this.#body.firstElementChild;
    drawn.forEach((lock, i) => {
      let row = this.#rows.get(lock.name);
      const isNew = row === undefined;
      if (isNew) {
        row = new Row(lock.name);
        this.#rows.set(lock.name, row);
        this.#view.observe(row.element);
        row.mark(lock.name === this.#marked);
      }
      row.slot = from + i;
      if (row.leavingSince === null) row.update(lock, now);
      if (this.#windowed) row.element.setAttribute("aria-rowindex", String(from + i + 2));
      else row.element.removeAttribute("aria-rowindex");
      // One that is aimed at is not moved, or it would lose the focus: others move around it.
      if (row === aimed) while (before !== null && before !== row.element) before = this.#takeOut(before);
      if (before === row.element) before = before.nextElementSibling;
      else this.#body.insertBefore(row.element, before);
      const further = this.#beforeEnd !== null && lock.name > this.#beforeEnd;
      if (isNew && !further && find(this.#before, lock.name) === undefined) row.flash(now);
    });
  }

  // takeOut takes a row out, which is put in further below, and returns the next.
  #takeOut(element) {
    const next = element.nextElementSibling;
    element.remove();
    return next;
  }

  #room(body, height) {
    if (height === 0) body.replaceChildren();
    else if (body.firstElementChild === null) body.append(el("tr", null, el("td")));
    if (height > 0) body.firstElementChild.style.height = `${height}px`;
  }

  // tick has the rows say how much time there is, once a second, all in the same frame.
  tick(now) {
    const second = Math.floor(now / 1000);
    if (second === this.#second) return;
    this.#second = second;
    for (const row of this.#rows.values()) row.tick(now);
  }

  // mark shows which lock is open.
  mark(name) {
    this.#marked = name;
    for (const row of this.#rows.values()) row.mark(row.name === name);
  }

  // focus puts the focus on a lock's link, if it is shown: it is drawn for that.
  focus(name) {
    if (!this.#rows.has(name) && this.#rowHeight > 0) {
      const at = this.#slots.findIndex((lock) => lock.name === name);
      if (at < 0) return false;
      scrollTo(0, scrollY + this.#above.getBoundingClientRect().top + at * this.#rowHeight - innerHeight / 2);
      this.#draw(performance.now());
    }
    const row = this.#rows.get(name);
    if (row === undefined) return false;
    row.focus();
    return true;
  }

  // step puts the focus on the row so many places behind the one that has it, or that is
  // open; without one on the first in view.
  step(by) {
    const focused = document.activeElement?.closest("tr[data-name]")?.dataset.name ?? this.#stepped ?? this.#marked;
    const leaves = (lock) => (this.#rows.get(lock?.name)?.leavingSince ?? null) !== null;
    const at = this.#slots.findIndex(({ name }) => name === focused);
    let to = at < 0 ? Math.max(0, this.#slots.findIndex(({ name }) => this.#inView.has(name))) : at + by;
    while (leaves(this.#slots[to])) to += by;
    const next = this.#slots[to] ?? this.#slots[at];
    if (next === undefined) return;
    this.#stepped = next.name;
    this.focus(next.name);
  }
  #stepped = null; // where the keyboard was when its row went out of view

  get size() {
    return this.#rows.size;
  }

  #tellView() {
    this.#on.view([...this.#inView]);
  }

  #remove(row) {
    // The focus must not fall back to the top of the page with its row.
    if (row.element.contains(document.activeElement) && find(this.#known, row.name) === undefined) {
      const next = row.element.nextElementSibling ?? row.element.previousElementSibling;
      next?.querySelector("a")?.focus({ preventScroll: true });
    }
    this.#view.unobserve(row.element);
    this.#inView.delete(row.name);
    row.element.remove();
    this.#rows.delete(row.name);
  }
}
