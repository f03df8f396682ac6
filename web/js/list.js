// list.js: the table of live locks. Rows are kept by name and changed in place,
// so that nothing flickers, focus stays where it is and bars run on.

import { age, instant, since } from "./clock.js";
import { Countdown } from "./countdown.js";
import { calm, cell, el, setText, setTitle } from "./dom.js";
import { lockHref } from "./route.js";

// How long a row that has ended says so, fading, before it leaves.
const leaveMs = 900;

// ended tells whether a name that is missing from an answer is free now. It may
// only be not shown any more, because the search or the end of the page moved.
export function ended(name, { sameSearch, more, lastName }) {
  if (!sameSearch) return false;
  return !more || (lastName !== null && name <= lastName);
}

// holding sums up who holds a lock: several holders are counted, then named. The
// row shows the lease that lasts longest, since when the lock has been held, and
// the newest token.
export function holding({ holders, holder_count: count }) {
  const longest = holders.reduce((a, b) => (b.deadline > a.deadline ? b : a));
  const first = holders.reduce((a, b) => (b.acquired_at < a.acquired_at ? b : a));
  const token = Math.max(...holders.map((holder) => holder.fencing_token));
  const limit = permits(holders);
  const of = limit === null ? "" : ` of ${limit}`;
  if (count === 1) return { longest, first, token, who: longest.owner, others: "", shared: of === "" ? "shared" : `shared, 1${of}` };
  const owners = holders.map((holder) => holder.owner || "\u2014");
  return { longest, first, token, who: `${count}${of} holders`, others: owners.slice(0, 20).join(", "), shared: "shared" };
}

// permits is how many holders there may be: what the least tolerant of them
// tolerates, null if none of them has a limit.
export function permits(holders) {
  const limits = holders.map(({ limit }) => limit).filter((limit) => limit > 0);
  return limits.length === 0 ? null : Math.min(...limits);
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
    this.#mode.hidden = lock.mode !== "shared";
    setText(this.#mode, shared);
    this.#acquiredMark = first.acquiredMark;
    setText(this.#waiting, String(lock.waiting));
    this.#queue.toggleAttribute("data-none", lock.waiting === 0);
    setText(this.#since, since(first.acquired_at, first.storeNow));
    setTitle(this.#since, instant(first.acquired_at));
    if (this.#since.dateTime !== first.acquired_at) this.#since.dateTime = first.acquired_at;
    setText(this.#token, String(token));
    if (this.#tokenShown !== null && this.#tokenShown !== token) this.flash();
    this.#tokenShown = token;
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

  // flash marks a new grant.
  flash() {
    if (calm()) return;
    this.element.animate([{ backgroundColor: "var(--flash)" }, { backgroundColor: "transparent" }], { duration: 1200, easing: "ease-out" });
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

export class List {
  #rows = new Map();
  #body;
  #query = null;
  #onLeft;
  #view = new IntersectionObserver((entries) => {
    const now = performance.now();
    for (const { target, isIntersecting } of entries) this.#rows.get(target.dataset.name)?.watch(isIntersecting, now);
  }, { rootMargin: "100px" });

  // onLeft is called when a row has faded and left.
  constructor(body, { onLeft }) {
    this.#body = body;
    this.#onLeft = onLeft;
  }

  // update shows the locks of an answer, which are in the order of their names.
  update({ query, list: { locks, more }, ends }, now) {
    const sameSearch = this.#query === query.q;
    const fresh = this.#query === null || !sameSearch;
    this.#query = query.q;
    const live = locks.filter((lock) => lock.holders.length > 0);
    const names = new Set(live.map((lock) => lock.name));
    const lastName = locks.at(-1)?.name ?? null;
    for (const row of this.#rows.values()) {
      if (names.has(row.name) || (row.leaving !== null && sameSearch)) continue;
      if (ended(row.name, { sameSearch, more, lastName })) {
        row.leave(now, ends.get(row.name), () => {
          this.#remove(row);
          this.#onLeft();
        });
      } else {
        this.#remove(row);
      }
    }
    let before = this.#body.firstElementChild;
    for (const lock of live) {
      let row = this.#rows.get(lock.name);
      const isNew = row === undefined;
      if (isNew) {
        row = new Row(lock.name);
        this.#rows.set(lock.name, row);
        this.#view.observe(row.element);
      }
      row.update(lock, now);
      // Rows that are leaving keep their place among those that stay.
      while (before !== null && before !== row.element && before.classList.contains("leaving")) before = before.nextElementSibling;
      if (before === row.element) before = before.nextElementSibling;
      else this.#body.insertBefore(row.element, before);
      if (isNew && !fresh) row.flash();
    }
  }

  tick(now) {
    for (const row of this.#rows.values()) row.tick(now);
  }

  // mark shows which lock is open.
  mark(name) {
    for (const row of this.#rows.values()) {
      const link = row.element.querySelector("a");
      if (row.name === name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  // focus puts the focus on a lock's link, if it is shown.
  focus(name) {
    const link = this.#rows.get(name)?.element.querySelector("a");
    link?.focus();
    return link !== undefined;
  }

  get size() {
    return this.#rows.size;
  }

  #remove(row) {
    row.stay();
    // The focus must not fall back to the top of the page with its row.
    if (row.element.contains(document.activeElement)) {
      const next = row.element.nextElementSibling ?? row.element.previousElementSibling;
      next?.querySelector("a").focus({ preventScroll: true });
    }
    this.#view.unobserve(row.element);
    row.element.remove();
    this.#rows.delete(row.name);
  }
}
