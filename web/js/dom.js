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

// calm reports whether the reader has asked for less motion.
export function calm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
