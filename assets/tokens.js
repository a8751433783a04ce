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

// Text and other nodes are put into the node as such: what comes from a model is never markup.
Cactus.node = (tag, className, ...inside) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...inside.filter((piece) => piece !== undefined && piece !== null));
  return node;
};

// Line breaks stay real and get a mark; control and direction characters are boxed so that they act on nothing else.
Cactus.fill = (node, text) => {
  if (!text) return void node.classList.add("blank");
  text.split(/(\n|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069])/).forEach((part, index) => {
    if (index % 2 === 0) return node.append(part);
    if (part === "\n") return node.append(Cactus.node("i", "newline"), "\n");
    const box = Cactus.node("bdo", "control", part);
    box.dataset.code = "U+" + part.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    node.append(box);
  });
};

// A turn before the answer; a long one is closed and shows how it begins.
Cactus.turn = ([role, said]) => {
  const full = Cactus.made("p", { dir: "auto" });
  Cactus.fill(full, said);
  const box = Cactus.node("details", "turn", Cactus.node("summary", "", role, Cactus.node("span", "excerpt", said.slice(0, 160))), full);
  box.dataset.role = role;
  box.open = said.length < 320;
  return box;
};

Cactus.tokens = (element, props, watch, pick) => {
  const find = (selector) => element.querySelector(selector);
  const stream = find(".stream"), body = find(".stream-body"), text = find(".stream-text"), card = find(".token-card");
  const legend = [...element.querySelectorAll(".legend button")];
  card.id = `token-card-${Cactus.cards = (Cactus.cards || 0) + 1}`;
  const emitted = new Set(["accepted", "recovered", "bonus", "sampled"]);
  let labels = [], records = [], nodes = [], thought = null, current = null, stepped = null;

  const state = (name) => {
    stream.dataset.state = name;
    if (pick) document.documentElement.dataset.cactus = name; // the Playground's own, not a lane
  };

  const restart = () => {
    hide();
    labels = [], records = [], nodes = [];
    thought = current = stepped = null;
    told("");
    text.replaceChildren();
    find(".stream-turns").replaceChildren();
    find(".stream-end").textContent = find(".stream-facts").textContent = "";
    stream.classList.remove("failed");
    state("empty");
  };

  const add = (round, tokens) => {
    tokens.forEach((record, index) => {
      const node = Cactus.node("span", index ? "tok" : "tok first");
      Object.assign(node.dataset, { status: record[1], round, index: nodes.length });
      node.tabIndex = nodes.length ? -1 : 0;
      Cactus.fill(node, record[0]);
      place(node, record[8]);
      records.push([round, ...record]);
      nodes.push(node);
    });
    if (thought?.going) label("thinking:");
  };

  const kept = (node) => emitted.has(node.dataset.status);
  const label = (what) => { thought.firstChild.textContent = `${what} ${thought.size} tokens`; };

  // What a model thinks aloud is folded: open while it grows, closed behind it. Mark 2: so was all the text before.
  const place = (node, mark) => {
    if (!mark && thought?.going) {
      label("thought for");
      thought.open = thought.going = false;
    }
    if (!mark) return text.append(node);
    if (!thought) {
      thought = Cactus.node("details", "thought", Cactus.node("summary"), ...(mark > 1 ? nodes : []));
      Object.assign(thought, { open: true, going: true, size: mark > 1 ? nodes.filter(kept).length : 0 });
      text.append(thought);
    }
    thought.append(node);
    thought.size += kept(node);
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
    if (record.turns) find(".stream-turns").replaceChildren(...record.turns.map(Cactus.turn));
    else if (record.wait) wait(record);
    else if (record.labels) {
      labels = record.labels;
      find(".stream-facts").textContent = record.facts;
      state("running");
    } else if (record.round) add(record.round, record.tokens);
    else if (record.end !== undefined) {
      find(".stream-end").textContent = record.end;
      stream.classList.toggle("failed", record.failed);
      const parted = nodes.find((node, index) => records[index][3] === record.parts && kept(node));
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

  // The next token to be seen on this side; of nothing, the first or the last.
  const beside = (node, way) => {
    let index = node ? Number(node.dataset.index) : way > 0 ? -1 : nodes.length;
    do index += way; while (nodes[index] && !nodes[index].checkVisibility());
    return nodes[index];
  };

  const step = (unit, way) => {
    let node = beside(stepped, way);
    const within = (other) => unit === "round" && node && other?.dataset.round === node.dataset.round;
    while (within(stepped)) node = beside(node, way);
    while (way < 0 && within(beside(node, way))) node = beside(node, way);
    if (!node) return;
    hide();
    node.scrollIntoView({ block: "nearest" });
    look(node); // without the card, which would cover what is told
  };

  const bars = (title, top) => {
    const rows = top.map(([word, share, shown]) => {
      const bar = Cactus.node("i"), name = Cactus.node("bdi", "", JSON.stringify(word).slice(1, -1) || "∅");
      bar.style.width = (100 * share).toFixed(1) + "%";
      return Cactus.node("div", "bar", name, Cactus.node("span", "track", bar), Cactus.node("b", "", shown));
    });
    return Cactus.node("div", "bars", Cactus.node("h4", "", title), ...rows);
  };

  const describe = ([round, word, status, position, verdict, numbers, draft, verifier]) => {
    const name = Cactus.node("bdi", "card-token", JSON.stringify(word)), where = `token ${position} · round ${round}`;
    const head = Cactus.node("div", "card-head", name, Cactus.node("span", "card-status", status), Cactus.node("span", "card-place", where));
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
    node.setAttribute("aria-describedby", card.id);
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
    current.classList.toggle("here", on);
    for (const node of text.querySelectorAll(`[data-round="${current.dataset.round}"]`)) node.classList.toggle("same-round", on);
  };

  const focus = (node) => {
    if (!node) return;
    for (const old of text.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    node.tabIndex = 0;
    node.focus({ preventScroll: false });
  };

  const meet = (event) => { const node = event.target.closest(".tok"); if (node) show(node); };
  text.addEventListener("mouseover", meet);
  text.addEventListener("focusin", meet);
  text.addEventListener("mouseleave", hide);
  text.addEventListener("click", (event) => focus(event.target.closest(".tok")));
  text.addEventListener("focusout", hide);
  body.addEventListener("scroll", () => { if (current && !current.matches(":hover") && !find(".stream-steps").matches(":hover, :focus-within")) hide(); }, { passive: true });
  text.addEventListener("keydown", (event) => {
    const node = event.target.closest(".tok");
    const goals = {
      ArrowRight: () => beside(node, 1),
      ArrowLeft: () => beside(node, -1),
      Home: () => beside(null, 1),
      End: () => beside(null, -1),
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
