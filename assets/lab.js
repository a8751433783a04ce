// The theory lab: keeps what was entered, asks the server what follows from it, and shows the answer.
"use strict"; window.Cactus = window.Cactus || {};

Cactus.made = (tag, given, event, listen) => {
  const node = Object.assign(document.createElement(tag), given);
  if (event) node.addEventListener(event, () => listen(node));
  return node;
};

// A slider and a number field that follow each other; changed(value) is told of both.
Cactus.slide = (value, min, max, step, ariaLabel, changed) => {
  const told = (node, other) => {
    if (!Number.isFinite(node.valueAsNumber)) return;
    other.value = node.value;
    changed(node.valueAsNumber);
  };
  const common = { min, max, value, ariaLabel };
  const slider = Cactus.made("input", { type: "range", step, ...common, value }, "input", () => told(slider, field));
  const field = Cactus.made("input", { type: "number", step: step >= 1 ? step : "any", ...common }, "input", () => told(field, slider));
  return [slider, field];
};

// A control for a declared parameter: a list, or a slider with its number.
Cactus.dial = ({ label, help, choices, minimum, maximum, step }, value, changed) => {
  const box = Cactus.node("label", "dial", Cactus.node("span", "dial-name", label));
  box.title = help;
  if (choices) {
    const list = Cactus.made("select", {}, "change", () => changed(list.value));
    list.append(...choices.map((choice) => new Option(choice, choice, false, choice === value)));
    box.append(list);
  } else box.append(...Cactus.slide(value, minimum, maximum, step, label, changed));
  return box;
};

Cactus.lab = (element, props, watch, server) => {
  const find = (selector) => element.querySelector(selector);
  const canvases = [...element.querySelectorAll(".lab-plot")].map(Cactus.canvas);
  let told = {}, state = {}, busy = false, again = false;

  const derive = async () => {
    again = busy;
    if (busy) return;
    busy = true;
    const lost = { error: "The server does not answer. What is shown is from before." };
    show(await server.derive(state).catch(() => lost));
    busy = false;
    if (again) derive();
  };

  const show = (answer) => {
    find(".lab-error").textContent = answer.error || "";
    if (answer.error) return;
    Cactus.fillTable(find(".lab-matrix"), answer.matrix);
    Cactus.fillTable(find(".lab-verdicts"), answer.verdicts);
    find(".lab-facts").replaceChildren(...answer.facts.flatMap(([name, value]) => [Cactus.node("dt", "", name), Cactus.node("dd", "", value)]));
    find(".lab-apart").textContent = answer.apart;
    if (!again) answer.points.forEach((points, index) => canvases[index].replace(points)); // figures wait for the hand to rest
  };

  const touched = () => { find(".lab-preset").value = ""; derive(); };

  const row = (entry, index) => {
    const line = Cactus.node("div", "lab-row"), nth = `token ${index + 1}`;
    const of = (place, model) => {
      const pair = Cactus.slide(Number(entry[place].toFixed(4)), 0, 1, 0.01, `${model} probability of ${nth}`, (value) => { entry[place] = value; touched(); });
      pair[0].className = "of-" + model;
      return pair;
    };
    const drop = () => {
      state.rows.splice(index, 1);
      state.drafted = Math.max(0, state.drafted - (index <= state.drafted ? 1 : 0));
      edited();
    };
    line.append(
      Cactus.made("input", { type: "radio", name: "lab-drafted", checked: index === state.drafted, ariaLabel: `${nth} was drafted` }, "change", () => { state.drafted = index; derive(); }),
      Cactus.made("input", { value: entry[0], maxLength: 24, ariaLabel: `name of ${nth}` }, "input", (name) => { entry[0] = name.value; touched(); }),
      ...of(1, "draft"), ...of(2, "verifier"),
      Cactus.made("button", { type: "button", className: "lab-drop", textContent: "×", ariaLabel: `remove ${nth}`, disabled: state.rows.length <= told.limits[0] }, "click", drop),
    );
    return line;
  };

  // The tokens changed, not a number alone: the rows are made anew.
  const edited = (asked = true) => {
    const head = Cactus.node("div", "lab-row lab-row-head", ...["", "token", "draft p", "verifier q", ""].map((text) => Cactus.node("span", "", text)));
    find(".lab-rows").replaceChildren(head, ...state.rows.map(row));
    find(".lab-add").disabled = state.rows.length >= told.limits[1];
    asked ? touched() : derive();
  };

  const take = (rows, drafted, note, preset) => {
    Object.assign(state, { rows: rows.map((entry) => [...entry]), drafted });
    find(".lab-note").textContent = note;
    edited(false);
    find(".lab-preset").value = preset;
  };

  const choose = (chosen) => {
    state.quantity = chosen.name;
    find(".lab-what").textContent = chosen.title;
    [...find(".lab-quantity").children].forEach((button, index) => button.setAttribute("aria-pressed", String(told.quantities[index] === chosen)));
    derive();
  };

  const dials = (parameters, own) => parameters.map((parameter) => {
    own[parameter.name] = parameter.default;
    return Cactus.dial(parameter, parameter.default, (value) => { own[parameter.name] = value; derive(); });
  });

  const begin = () => {
    Object.assign(state, { params: {}, curve: {}, rows: told.rows, drafted: told.drafted });
    find(".lab-preset").append(new Option("own numbers", ""), ...told.presets.map(({ label, name }) => new Option(label, name)));
    find(".lab-rules").append(...told.rules.map(({ name, label, title, parameters }) => {
      const head = Cactus.made("span", { className: "lab-rule-name", textContent: label, title });
      return Cactus.node("div", "lab-rule", head, ...dials(parameters, state.params[name] = {}));
    }));
    find(".lab-dials").append(...dials(told.curve, state.curve));
    told.figures.forEach((figure, index) => canvases[index].show(figure));
    find(".lab-quantity").append(...told.quantities.map((quantity) => Cactus.made("button", { type: "button", textContent: quantity.label, title: quantity.title }, "click", () => choose(quantity))));
    choose(told.quantities[0]);
  };

  find(".lab-preset").addEventListener("change", (event) => {
    const preset = told.presets.find(({ name }) => name === event.target.value);
    if (preset) take(preset.tokens.map((token, i) => [token, preset.draft_probs[i], preset.verifier_probs[i]]), preset.drafted, preset.shows, preset.name);
  });
  find(".lab-add").addEventListener("click", () => { state.rows.push(["new", 0, 0]); edited(); });
  find(".lab-norm").addEventListener("click", () => {
    for (const place of [1, 2]) {
      const sum = state.rows.reduce((total, entry) => total + entry[place], 0);
      if (sum > 0) for (const entry of state.rows) entry[place] /= sum;
    }
    edited();
  });
  Cactus.parsed(props, watch, (opening) => {
    const fresh = !told.rules;
    told = fresh ? opening : { ...told, ...opening, quantities: told.quantities };
    if (fresh) begin();
    take(told.rows, told.drafted, told.note, told.preset);
  });
};
