// commands.js: what the page does and shows, as commands for a shell.

import { el } from "./dom.js";
import { breakPath, historyPath, lockPath, queuePath } from "./route.js";

// quote makes one word of a text for a shell. A ~ may stand bare anywhere but at the
// beginning, or behind = or :, where shells take it for a directory.
export function quote(text) {
  return /^(?!.*(?:^|[=:])~)[A-Za-z0-9@%+=:,./~_-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// argument is a name as the first argument of lockctl, which must not read it as a flag.
const argument = (name) => (name.startsWith("-") ? `-- ${quote(name)}` : quote(name));

// curl is a command for a request; keyed says that the gateway wants a key, which the
// command takes from where lockctl has it. reason goes into the body; empty is none.
export function curl(method, url, headers, keyed, reason = "") {
  const all = keyed ? [...headers, null] : headers;
  const header = (text) => (text === null ? "-H \"Authorization: Bearer $FENCEPOST_KEY\"" : `-H ${quote(text)}`);
  return ["curl", ...method === "GET" ? [] : ["-X", method], ...all.map(header), ...reason === "" ? [] : [`-d ${quote(JSON.stringify({ reason }))}`], quote(url)].join(" ");
}

// commandsFor are the commands about a lock: [what, command]. tokens are those of its
// holders, leases those of its waiters.
export function commandsFor(origin, name, tokens, leases, keyed) {
  const shown = argument(name);
  return [
    ["Look at it", curl("GET", origin + lockPath(name), [], keyed)],
    ["", `lockctl get ${shown}`],
    ["Who held it", curl("GET", origin + historyPath(name), [], keyed)],
    ["", `lockctl history ${shown}`],
    ["Watch it", `lockctl watch ${shown}`],
    ...tokens.flatMap((token) => [
      [tokens.length > 1 ? `Break the lease with the token ${token}` : "Break its lease", breakCommands(origin, name, token, 0, "", keyed)],
      ["Break it with notice", breakCommands(origin, name, token, 30_000, "", keyed)],
    ]).flatMap(pair),
    ...leases.flatMap((lease) => pair(["Evict the first of its queue", evictCommands(origin, name, lease, "", keyed)])),
  ];
}

const pair = ([what, [first, second]]) => [[what, first], ["", second]];

// breakCommands break a lease: with curl, and with lockctl.
export function breakCommands(origin, name, token, noticeMs, reason, keyed) {
  const flags = [...noticeMs === 0 ? [] : [`-notice ${noticeMs / 1000}s`], ...because(reason)];
  return [
    curl("DELETE", origin + breakPath(name, noticeMs), [`If-Match: "${token}"`], keyed, reason),
    ["lockctl break", ...flags, argument(name), token].join(" "),
  ];
}

// evictCommands take a waiter out of the queue, in the same two ways.
export function evictCommands(origin, name, lease, reason, keyed) {
  return [
    curl("DELETE", origin + queuePath(name, lease), [], keyed, reason),
    ["lockctl evict", ...because(reason), argument(name), quote(lease)].join(" "),
  ];
}

const because = (reason) => (reason === "" ? [] : [`-reason ${quote(reason)}`]);

// command shows a command, with a button that copies it where the browser allows that.
export function command(text, label = "Command") {
  const box = el("div", { class: "command" }, el("pre", { tabindex: "0", "aria-label": label }, el("code", null, text)));
  if (navigator.clipboard) box.append(copyButton(text));
  return box;
}

function copyButton(text) {
  const button = el("button", { type: "button", class: "button copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
