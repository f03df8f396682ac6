// list.js: the table of live locks. Rows are kept by name and changed in place,
// so that nothing flickers, focus stays where it is and bars run on. Of a long list only
// those in view are drawn.

import { age, instant, since } from "./clock.js";
import { Countdown } from "./countdown.js";
import { calm, cell, el, setText, setTitle } from "./dom.js";
import { holding } from "./holding.js";
import { lockHref } from "./route.js";
import { find } from "./shown.js";

// How long a row that has ended says so, fading, before it leaves.
const leaveMs = 900;

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
  leaving = null;

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
    if (lock === this.#lock && this.leaving === null) return;
    this.#lock = lock;
    this.stay();
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
    if (this.#tokenShown !== null && this.#tokenShown !== token) this.flash();
    this.#tokenShown = token;
    // The page's clock begins when it is opened.
    this.element.toggleAttribute("data-since-opened", lock.holders.some(({ acquiredMark }) => acquiredMark > 0));
    this.#countdown.set(longest.deadline, longest.ttl_ms, now);
    setText(this.#age, age(now - this.#acquiredMark));
  }

  tick(now) {
    if (this.leaving !== null) return;
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

  // flash marks a new grant.
  flash() {
    if (calm()) return;
    this.element.animate([{ backgroundColor: "var(--flash)", offset: 0 }], { duration: 1200, easing: "ease-out" }); // to its own colour
  }

  // leave says how the lease ended, if it is known, and calls done when the row
  // has faded.
  leave(now, how, done) {
    setText(this.#countdown.text, how ?? (this.#countdown.deadline <= now ? "expired" : "ended"));
    this.element.classList.add("leaving");
    const fade = calm() ? [{ opacity: 1 }, { opacity: 1 }] : [{ opacity: 1 }, { opacity: 1, offset: 0.45 }, { opacity: 0 }];
    this.leaving = this.element.animate(fade, { duration: leaveMs, easing: "ease-in", fill: "forwards" });
    this.leaving.onfinish = done;
  }

  // stay calls a row back: the name was granted again while it was leaving.
  stay() {
    if (this.leaving === null) return;
    this.leaving.onfinish = null;
    this.leaving.cancel();
    this.leaving = null;
    this.element.classList.remove("leaving");
  }
}

// Up to so many rows are drawn all at once; of more only those in view and some around
// them, each of one height, so that the others need no more than room.
const allDrawn = 200;
const around = 15;

// A Window is the part of the rows that is drawn: [from, to) of count.
export function windowOf(count, top, height, rowHeight) {
  if (count <= allDrawn || !(rowHeight > 0)) return { from: 0, to: Math.min(count, allDrawn) };
  const first = Math.floor(Math.max(0, -top) / rowHeight);
  const from = Math.max(0, Math.min(first, count) - around);
  return { from, to: Math.min(count, Math.max(0, first) + Math.ceil(height / rowHeight) + around) };
}

// List is the table. Its rows are made and dropped as they come into view.
export class List {
  #table;
  #body;
  #above = el("tbody", { "aria-hidden": "true", class: "room" });
  #below = el("tbody", { "aria-hidden": "true", class: "room" });
  #rows = new Map(); // those that are drawn, by name
  #shown = []; // the locks that are shown, drawn or not
  #known = []; // all that are known, in the order of the names
  #before = []; // and what was known before
  #beforeEnd = null; // the last of these, if there were others behind it
  #endings = new Endings();
  #marked = null;
  #rowHeight = 0;
  #query = null;
  #on;
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

  // onLeft is called when a row has faded and left, onView with the names in view.
  constructor(table, body, { onLeft, onView }) {
    this.#table = table;
    this.#body = body;
    this.#on = { left: onLeft, view: onView };
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
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === width) return;
      width = contentRect.width;
      this.#rowHeight = 0;
      redraw();
    }).observe(table);
  }

  get #windowed() {
    return this.#shown.length > allDrawn;
  }

  // tell notes how leases have ended, by name: their rows say it when they leave.
  tell(ends) {
    this.#endings.note(ends, this.#rows);
  }

  // update shows some of the locks of an answer, in an order of their own.
  update({ query, list: { locks, more } }, shown, now) {
    const search = JSON.stringify([query.q, query.prefix, query.filter]);
    const fresh = this.#query !== search;
    this.#query = search;
    this.#before = fresh ? locks : this.#known;
    this.#known = locks;
    this.#shown = shown;
    this.#draw(now, { more, sameSearch: !fresh, narrowed: Object.keys(query.filter).length > 0 });
    this.#endings.keep(this.#rows, locks); // what is drawn now is told of
    this.#before = locks;
    this.#beforeEnd = more ? locks.at(-1)?.name ?? null : null;
  }

  // draw makes the rows of what is in view, and keeps those that were there.
  #draw(now, { more = true, sameSearch = true, narrowed = false } = {}) {
    const windowed = this.#windowed;
    this.#table.toggleAttribute("data-windowed", windowed);
    if (windowed) this.#table.setAttribute("aria-rowcount", String(this.#shown.length + 1));
    else this.#table.removeAttribute("aria-rowcount");
    const { from, to } = windowOf(this.#shown.length, this.#above.getBoundingClientRect().top, innerHeight, this.#rowHeight);
    const drawn = this.#shown.slice(from, to);
    const names = new Set(drawn.map((lock) => lock.name));
    const lastName = this.#known.at(-1)?.name ?? null;
    for (const row of this.#rows.values()) {
      if (names.has(row.name) || (row.leaving !== null && sameSearch)) continue;
      // One that is not known any more under a filter may only meet it no more.
      if (find(this.#known, row.name) === undefined && ended(row.name, { sameSearch, more, lastName }) && (!narrowed || this.#endings.of(row.name) !== undefined)) {
        row.leave(now, this.#endings.of(row.name), () => {
          this.#remove(row);
          this.#on.left();
        });
      } else {
        this.#remove(row);
      }
    }
    this.#place(drawn, from, now);
    this.#room(this.#above, from);
    this.#room(this.#below, this.#shown.length - to);
    if (windowed && this.#rowHeight === 0 && drawn.length > 0) {
      const { height } = this.#body.getBoundingClientRect();
      this.#rowHeight = height / this.#rows.size;
      if (this.#rowHeight > 0) this.#draw(now);
    }
  }

  #place(drawn, from, now) {
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
      row.update(lock, now);
      if (this.#windowed) row.element.setAttribute("aria-rowindex", String(from + i + 2));
      else row.element.removeAttribute("aria-rowindex");
      // Rows that are leaving keep their place among those that stay.
      while (before !== null && before !== row.element && before.classList.contains("leaving")) before = before.nextElementSibling;
      if (before === row.element) before = before.nextElementSibling;
      else this.#body.insertBefore(row.element, before);
      const further = this.#beforeEnd !== null && lock.name > this.#beforeEnd;
      if (isNew && !further && find(this.#before, lock.name) === undefined) row.flash();
    });
  }

  #room(body, count) {
    const height = count * this.#rowHeight;
    if (height === 0) body.replaceChildren();
    else if (body.firstElementChild === null) body.append(el("tr", null, el("td", { colspan: "6" })));
    if (height > 0) body.firstElementChild.style.height = `${height}px`;
  }

  tick(now) {
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
      const at = this.#shown.findIndex((lock) => lock.name === name);
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
    const at = this.#shown.findIndex(({ name }) => name === focused);
    const first = this.#shown.findIndex(({ name }) => this.#inView.has(name));
    const next = this.#shown[at < 0 ? Math.max(0, first) : Math.max(0, Math.min(this.#shown.length - 1, at + by))];
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
    row.stay();
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
