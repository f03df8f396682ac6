// dom.js: building elements. Names, owners and metadata are other people's
// text: they only ever become text nodes and attributes, never markup.

// el makes an element. In props, "class" and "data-…", "aria-…", "href" and the
// like are attributes; null and false leave one out, true sets it empty.
export function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// setText writes only what has changed, so that selections and screen readers
// are left in peace.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// setTitle does the same for the tooltip.
export function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}

// pointing returns a function that finds what somebody points at below an element, null where there is none.
// A finger that is lifted points at nothing, though the browser goes on to say so.
export function pointing(root) {
  let finger = false;
  root.addEventListener("pointerover", ({ pointerType }) => { finger = pointerType === "touch"; }, { passive: true });
  return (selector) => (finger ? null : root.querySelector(`${selector}:hover`));
}

// cell is a cell of a table. Roles are spelled out wherever a layout changes the
// display of rows, which can cost a table its meaning.
export function cell(kind, ...children) {
  return el("td", { role: "cell", class: kind }, ...children);
}

// table makes a table with a caption for those who don't see it and a heading a
// column; columns is {class: heading}.
export function table(kind, caption, columns) {
  const heads = Object.entries(columns).map(([column, heading]) =>
    el("th", { role: "columnheader", scope: "col", class: column }, heading));
  const body = el("tbody", { role: "rowgroup" });
  const element = el("table", { role: "table", class: kind },
    el("caption", { class: "visually-hidden" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)),
    body);
  return { element, body };
}

// reconcile makes body hold the elements of the items, in their order, each kept
// for as long as its key is there: make builds what is new, and every element's
// view is told its item. views maps keys to views, which have an element.
export function reconcile(body, views, items, key, make, tell) {
  const keys = new Set(items.map(key));
  for (const [gone, view] of views) {
    if (keys.has(gone)) continue;
    view.element.remove();
    views.delete(gone);
  }
  let before = body.firstElementChild;
  for (const item of items) {
    let view = views.get(key(item));
    if (view === undefined) {
      view = make(item);
      views.set(key(item), view);
    }
    tell(view, item);
    if (view.element === before) before = before.nextElementSibling;
    else body.insertBefore(view.element, before);
  }
}

// owner shows whom a label names, or that there is none.
export function owner(label) {
  return label ? el("bdi", { class: "owner-text", title: label }, label) : el("span", { class: "muted" }, "none given");
}
