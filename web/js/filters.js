// filters.js: the controls that say which locks are shown and in what order, and the tree
// of prefixes. What they say is in the address.

import { marks, plain } from "./arrange.js";
import { el, reconcile, setText } from "./dom.js";
import { address, everything } from "./route.js";

// What a click on a heading asks for: what one looks for first.
const first = { name: "name", owner: "owner", queue: "queue", held: "held", token: "-token", remaining: "remaining" };

const turned = (sort) => (sort.startsWith("-") ? sort.slice(1) : `-${sort}`);

// Filters is the row of controls, and the buttons in the headings of the table.
export class Filters {
  #form;
  #heads;
  #clear;

  // onChange is called with what has been changed of the route.
  constructor(root, { onChange }) {
    this.#form = root.getElementById("filters");
    this.#clear = root.getElementById("filters-clear");
    this.#heads = [...root.querySelectorAll("#table th button")];
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("change", ({ target }) => {
      const { elements } = this.#form;
      if (target === elements.sort && elements.sort.value.endsWith("waits")) elements.waited.checked = true;
      onChange(this.#read());
    });
    this.#clear.addEventListener("click", () => {
      const { q, prefix, ...rest } = everything;
      onChange(rest);
      this.#form.elements.sort.focus();
    });
    for (const head of this.#heads) {
      head.addEventListener("click", () => {
        const { sort } = this.#read();
        const wanted = first[head.value];
        onChange({ sort: sort === wanted ? turned(wanted) : wanted });
      });
    }
  }

  #read() {
    const { elements } = this.#form;
    const text = (key) => [key, elements[key].value];
    return Object.fromEntries([...["sort", "held", "mode"].map(text), ...marks.map((mark) => [mark, elements[mark].checked])]);
  }

  // show shows a route. One that somebody typed may have what no control offers.
  show(route) {
    const { elements } = this.#form;
    for (const key of ["sort", "held", "mode"]) {
      const select = elements[key];
      if (![...select.options].some(({ value }) => value === route[key])) select.append(el("option", { value: route[key] }, route[key]));
      select.value = route[key];
    }
    for (const mark of marks) elements[mark].checked = route[mark];
    this.#clear.toggleAttribute("data-none", plain(route));
    for (const head of this.#heads) {
      const by = route.sort.replace(/^-/, "");
      const th = head.closest("th");
      if (head.value !== by) th.removeAttribute("aria-sort");
      else th.setAttribute("aria-sort", upwards(route.sort) ? "ascending" : "descending");
    }
  }
}

// upwards tells whether the numbers or texts of an order go up from row to row.
function upwards(sort) {
  const turn = sort.startsWith("-");
  return ["held", "queue", "waits"].includes(sort.replace(/^-/, "")) ? turn : !turn;
}

class Branch {
  #count = el("span", { class: "muted" });

  constructor({ prefix }, skip, href) {
    this.element = el("li", null, el("a", { href }, prefix.slice(skip)), " ", this.#count);
  }

  tell({ count }, more) {
    setText(this.#count, `${count.toLocaleString("en")}${more ? "+" : ""}`);
  }
}

// Tree shows what the names that are shown begin with, and how many there are of each.
export class Tree {
  #root;
  #path;
  #list;
  #rest;
  #views = new Map();
  #prefix = null;

  // onOpen is called when the tree is opened or closed.
  constructor(root, { onOpen }) {
    this.#root = root.getElementById("tree");
    this.#path = root.getElementById("tree-path");
    this.#list = root.getElementById("tree-list");
    this.#rest = root.getElementById("tree-rest");
    this.#root.addEventListener("toggle", onOpen);
  }

  get open() {
    return this.#root.open;
  }

  // show shows the way to a prefix; the tree is open when the address names one.
  show(route) {
    if (route.prefix !== "") this.#root.open = true;
    if (this.#prefix === route.prefix) return;
    this.#prefix = route.prefix;
    this.#views.clear();
    this.#list.replaceChildren();
    const steps = route.prefix.split(/(?<=\/)/).filter((step) => step !== "");
    const link = (text, prefix) => el("a", { href: address(location.pathname, { ...route, prefix, name: null }), "aria-current": prefix === route.prefix ? "true" : null }, text);
    this.#path.replaceChildren(link("All names", ""), ...steps.map((step, i) => link(step, steps.slice(0, i + 1).join(""))));
  }

  // update shows the branches below the prefix of a route; more, that there may be others.
  update({ branches: shown, others, leaves }, more, route) {
    reconcile(this.#list, this.#views, shown, ({ prefix }) => prefix,
      (branch) => new Branch(branch, route.prefix.length, address(location.pathname, { ...route, prefix: branch.prefix, name: null })),
      (view, branch) => view.tell(branch, more));
    const rest = [];
    if (others > 0) rest.push(`${others.toLocaleString("en")} more ${others === 1 ? "prefix" : "prefixes"}`);
    if (leaves > 0) rest.push(`${leaves.toLocaleString("en")}${more ? "+" : ""} without a further slash`);
    setText(this.#rest, rest.join(", "));
  }
}
