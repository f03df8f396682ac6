// commands.js: what the page does and shows, as commands for a shell.

import { el } from "./dom.js";

// quote makes one word of a text for a shell. A ~ may stand bare anywhere but at the
// beginning, or behind = or :, where shells take it for a directory.
export function quote(text) {
  return /^(?!.*(?:^|[=:])~)[A-Za-z0-9@%+=:,./~_-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// argument is a name as the first argument of lockctl, which must not read it as a flag.
const argument = (name) => (name.startsWith("-") ? `-- ${quote(name)}` : quote(name));

// curl is a command for a request; keyed says that the gateway wants a key, which the
// command takes from where lockctl has it.
export function curl(method, url, headers, keyed) {
  const all = keyed ? [...headers, null] : headers;
  const header = (text) => (text === null ? "-H \"Authorization: Bearer $FENCEPOST_KEY\"" : `-H ${quote(text)}`);
  return ["curl", ...method === "GET" ? [] : ["-X", method], ...all.map(header), quote(url)].join(" ");
}

// commandsFor are the commands about a lock: [what, command]. tokens are those of its
// holders.
export function commandsFor(origin, path, historyPath, name, tokens, keyed) {
  const shown = argument(name);
  return [
    ["Look at it", curl("GET", origin + path, [], keyed)],
    ["", `lockctl get ${shown}`],
    ["Who held it", curl("GET", origin + historyPath, [], keyed)],
    ["", `lockctl history ${shown}`],
    ["Watch it", `lockctl watch ${shown}`],
    ...tokens.flatMap((token) => [
      [tokens.length > 1 ? `Break the lease with the token ${token}` : "Break its lease", curl("DELETE", origin + path, [`If-Match: "${token}"`], keyed)],
      ["", `lockctl break ${shown} ${token}`],
    ]),
  ];
}

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
