// The text of a run, token by token. Reads append-only lines of JSON; text goes in as text, never as markup.
"use strict"; window.Cactus = window.Cactus || {};

// Calls read(record) for every line that is new; a value that does not continue the last one starts afresh.
Cactus.follow = (props, watch, read) => {
  let seen = 0, first = "";
  const update = () => {
    const value = props.value || "";
    if (seen && !value.startsWith(first)) seen = 0;
    if (!seen || value.length < seen) {
      seen = 0;
      first = value.slice(0, value.indexOf("\n") + 1);
      read(null);
    }
    const fresh = value.slice(seen);
    seen = value.length;
    for (const line of fresh.split("\n")) if (line) read(JSON.parse(line));
  };
  watch("value", update);
  update();
};

Cactus.node = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
};

// Line breaks stay real and get a mark; control and direction characters are boxed so that they act on nothing else.
Cactus.fill = (node, text) => {
  if (!text) {
    node.classList.add("blank");
    return;
  }
  for (const part of text.split(/(\n|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069])/)) {
    if (!part) continue;
    if (part === "\n") node.append(Cactus.node("i", "newline"), "\n");
    else if (/^[^\n\t -~]$/.test(part) && /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(part)) {
      const box = Cactus.node("bdo", "control", part);
      box.dataset.code = "U+" + part.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
      node.append(box);
    } else node.append(part);
  }
};

Cactus.tokens = (element, props, watch, pick) => {
  const find = (selector) => element.querySelector(selector);
  const stream = find(".stream"), body = find(".stream-body"), text = find(".stream-text"), card = find(".token-card");
  const legend = [...element.querySelectorAll(".legend button")];
  card.id = `token-card-${Cactus.cards = (Cactus.cards || 0) + 1}`;
  const emitted = new Set(["accepted", "recovered", "bonus", "sampled"]);
  let labels = [], records = [], current = null, stepped = null;

  const nodes = () => text.children;
  const state = (name) => {
    stream.dataset.state = name;
    if (pick) document.documentElement.dataset.cactus = name; // the Playground's own, not a lane
  };

  const restart = () => {
    hide();
    labels = [];
    records = [];
    current = stepped = null;
    told("");
    text.replaceChildren();
    find(".stream-end").textContent = find(".stream-facts").textContent = "";
    stream.classList.remove("failed");
    state("empty");
  };

  const add = (round, tokens) => {
    const piece = document.createDocumentFragment();
    tokens.forEach((record, index) => {
      const node = Cactus.node("span", "tok");
      Object.assign(node.dataset, { status: record[1], round, index: records.length });
      if (!index) node.classList.add("first");
      node.tabIndex = records.length ? -1 : 0;
      Cactus.fill(node, record[0]);
      records.push([round, ...record]);
      piece.append(node);
    });
    text.append(piece);
  };

  const wait = ({ wait: message, share }) => {
    const bar = find(".stream-wait progress");
    find(".stream-wait p").textContent = message;
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    state("waiting");
  };

  if (pick) Cactus.say = (line) => { find(".stream-end").textContent = line; };

  const read = (record) => {
    if (!record) return restart();
    const follows = body.scrollHeight - body.scrollTop - body.clientHeight < 40;
    if (record.wait) wait(record);
    else if (record.labels) {
      labels = record.labels;
      find(".stream-facts").textContent = record.facts;
      state("running");
    } else if (record.round) add(record.round, record.tokens);
    else if (record.end !== undefined) {
      find(".stream-end").textContent = record.end;
      stream.classList.toggle("failed", record.failed);
      const parted = [...nodes()].find((node, index) => records[index][3] === record.parts && emitted.has(node.dataset.status));
      if (parted) parted.classList.add("parts");
      state("done");
    }
    if (follows) body.scrollTop = body.scrollHeight;
  };

  // Step through: the verdict of one token stands in the foot until another is looked at.
  const told = (line, drafted) => {
    find(".stream-step").textContent = line;
    stream.classList.toggle("stepping", Boolean(line));
    find(".to-lab").disabled = !drafted;
  };

  const step = (unit, way) => {
    const side = way > 0 ? "nextElementSibling" : "previousElementSibling";
    let node = stepped ? visible(stepped, side) : way > 0 ? visible(text, "firstElementChild", side) : null;
    while (stepped && unit === "round" && node && node.dataset.round === stepped.dataset.round) node = visible(node, side);
    while (unit === "round" && way < 0 && visible(node, side)?.dataset.round === node.dataset.round) node = visible(node, side);
    if (!node) return;
    hide();
    node.scrollIntoView({ block: "nearest" });
    look(node); // without the card, which would cover what is told
  };

  const bars = (title, top) => {
    const box = Cactus.node("div", "bars");
    box.append(Cactus.node("h4", "", title));
    for (const [word, share, shown] of top) {
      const row = Cactus.node("div", "bar"), bar = Cactus.node("i", "");
      bar.style.width = (100 * share).toFixed(1) + "%";
      const track = Cactus.node("span", "track");
      track.append(bar);
      row.append(Cactus.node("bdi", "", JSON.stringify(word).slice(1, -1) || "∅"), track, Cactus.node("b", "", shown));
      box.append(row);
    }
    return box;
  };

  const describe = ([round, word, status, position, verdict, numbers, draft, verifier]) => {
    const head = Cactus.node("div", "card-head"), name = Cactus.node("bdi", "card-token", JSON.stringify(word));
    head.append(name, Cactus.node("span", "card-status", status), Cactus.node("span", "card-place", `token ${position} · round ${round}`));
    head.dataset.status = status;
    const table = Cactus.node("dl", "card-numbers");
    numbers.forEach((shown, index) => {
      if (shown !== null) table.append(Cactus.node("dt", "", labels[index]), Cactus.node("dd", "", shown));
    });
    const tops = Cactus.node("div", "card-tops");
    if (draft.length) tops.append(bars("draft model's top 5", draft));
    if (verifier.length) tops.append(bars("verifier's top 5", verifier));
    card.replaceChildren(head, Cactus.node("p", "card-verdict", verdict), table, tops);
  };

  const look = (node) => {
    mark(false);
    current = stepped = node;
    mark(true);
    const record = records[node.dataset.index];
    told(record[8], record[6].length);
  };

  const show = (node) => {
    if (node === current && card.matches(":popover-open")) return;
    look(node);
    describe(records[node.dataset.index]);
    if (!card.matches(":popover-open")) card.showPopover();
    const rect = node.getClientRects()[0] || node.getBoundingClientRect();
    const { width, height } = card.getBoundingClientRect(), room = document.documentElement;
    const below = rect.bottom + 8 + height < room.clientHeight;
    card.style.left = Math.max(8, Math.min(rect.left, room.clientWidth - width - 8)) + "px";
    card.style.top = (below ? rect.bottom + 8 : Math.max(8, rect.top - height - 8)) + "px";
  };

  const hide = () => {
    mark(false);
    current = null;
    if (card.matches(":popover-open")) card.hidePopover();
  };

  // The tokens of a round light up together.
  const mark = (on) => {
    if (!current) return;
    const round = current.dataset.round;
    current.classList.toggle("here", on);
    const light = (step) => {
      for (let node = current; node && node.dataset.round === round; node = node[step]) node.classList.toggle("same-round", on);
    };
    light("nextElementSibling");
    light("previousElementSibling");
  };

  const visible = (node, first, then = first) => {
    for (node = node && node[first]; node; node = node[then]) if (node.getClientRects().length) return node;
    return null;
  };

  const focus = (node) => {
    if (!node) return;
    for (const old of text.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    node.tabIndex = 0;
    node.focus({ preventScroll: false });
  };

  text.addEventListener("mouseover", (event) => { const node = event.target.closest(".tok"); if (node) show(node); });
  text.addEventListener("mouseleave", hide);
  text.addEventListener("click", (event) => focus(event.target.closest(".tok")));
  text.addEventListener("focusin", (event) => {
    const node = event.target.closest(".tok");
    if (!node) return;
    node.setAttribute("aria-describedby", card.id);
    show(node);
  });
  text.addEventListener("focusout", hide);
  body.addEventListener("scroll", () => { if (current && !current.matches(":hover") && !find(".stream-steps").matches(":hover, :focus-within")) hide(); }, { passive: true });
  text.addEventListener("keydown", (event) => {
    const node = event.target.closest(".tok");
    const goals = {
      ArrowRight: () => visible(node, "nextElementSibling"),
      ArrowLeft: () => visible(node, "previousElementSibling"),
      Home: () => nodes()[0],
      End: () => nodes()[nodes().length - 1],
    };
    if (event.key === "Escape") hide();
    if (!node || !goals[event.key]) return;
    event.preventDefault();
    focus(goals[event.key]());
  });

  for (const button of legend) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of legend) other.setAttribute("aria-pressed", String(on && other === button));
      stream.dataset.only = on ? button.dataset.filter : "";
    });
  }
  find(".hide-rejected").addEventListener("change", (event) => { stream.dataset.hide = event.target.checked ? "yes" : ""; });
  for (const button of element.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => step(button.dataset.step, Number(button.dataset.way)));
  }
  find(".stream-steps").addEventListener("focusout", hide);
  find(".to-lab").hidden = !pick;
  find(".to-lab").addEventListener("click", () => pick({ index: Number(stepped.dataset.index) }));
  find(".copy-text").addEventListener("click", (event) => {
    const clean = records.filter((record) => emitted.has(record[2])).map((record) => record[1]).join("");
    Cactus.copy(clean, event.currentTarget, "Copied", "Select and copy");
  });
  Cactus.follow(props, watch, read);
};
