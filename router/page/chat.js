// A chat with the model, over the router's OpenAI API.
import {at, make, write} from "./draw.js";
import {seconds, short} from "./rates.js";

const messages = [];  // in the format of the API
let model = "";
let under_way = null;  // AbortController

export function setModel(name) {
  model = name;
}

// Yields the data of each server-sent event as it arrives.
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      for (const line of event.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}

function say(who, text, mine) {
  at("log-none").hidden = true;
  const said = make("article", mine ? "said mine" : "said");
  said.append(make("p", "who", who), make("p", "text", text), make("p", "more"));
  at("log").append(said);
  at("log").scrollTop = at("log").scrollHeight;
  return said;
}

function setBusy(busy) {
  at("send").disabled = busy;
  at("stop").disabled = !busy;
  at("log").setAttribute("aria-busy", String(busy));
}

function bodyOf() {
  const body = {model, messages, stream: true, stream_options: {include_usage: true}, separate_reasoning: false};
  const tokens = Number(at("max-tokens").value);
  const temperature = at("temperature").value;
  if (tokens > 0) body.max_tokens = tokens;
  if (temperature !== "") body.temperature = Number(temperature);
  return body;
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status} from the router`;
  }
}

// One answer on the page. Its text joins the conversation only if it is not empty.
class Answer {
  constructor() {
    this.said = say(model || "Model", "", false);
    this.said.classList.add("streams");
    this.started = performance.now();
    this.first = null;
    this.text = "";
    this.usage = null;
    this.finish = "";
  }
  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      if (choice.finish_reason) this.finish = choice.finish_reason;
      const text = choice.delta.content;
      if (!text) continue;
      if (this.first === null) this.first = performance.now();
      this.text += text;
    }
    write(this.said.children[1], this.text);
    const log = at("log");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) log.scrollTop = log.scrollHeight;
  }
  end(note, failed) {
    this.said.classList.remove("streams");
    const facts = note ? [note] : [];
    if (this.first !== null) facts.push(`TTFT ${seconds((this.first - this.started) / 1000)}`);
    if (this.usage) {
      const took_s = (performance.now() - (this.first ?? this.started)) / 1000;
      const rest = this.usage.completion_tokens - 1;
      // Tokens that arrive all at once give no meaningful rate.
      const rate = took_s > 0.1 && rest > 0 ? `, ${short(rest / took_s)} tokens/s` : "";
      const cached = this.usage.prompt_tokens_details ? this.usage.prompt_tokens_details.cached_tokens : 0;
      facts.push(`${this.usage.completion_tokens} tokens${rate}`);
      facts.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens cached`);
    }
    if (this.finish === "length") facts.push("stopped at max tokens");
    write(this.said.children[2], facts.join(" · "));
    if (failed) {
      this.said.children[2].classList.add("error");
      this.said.children[2].setAttribute("role", "alert");
    }
    if (this.text) messages.push({role: "assistant", content: this.text});
  }
}

async function ask(headers, onRefused) {
  const answer = new Answer();
  under_way = new AbortController();
  setBusy(true);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: {...headers(), "Content-Type": "application/json"},
      body: JSON.stringify(bodyOf()), signal: under_way.signal,
    });
    if (response.status === 401) onRefused();
    if (!response.ok) throw new Error(await errorOf(response));
    let whole = false;
    for await (const event of eventsOf(response.body)) {
      if (event === "[DONE]") whole = true;
      else answer.take(JSON.parse(event));
    }
    answer.end(whole ? "" : "the stream ended before the answer was complete", !whole);
  } catch (error) {
    if (under_way.signal.aborted) answer.end("stopped", false);
    else answer.end(error.message, true);
  }
  under_way = null;
  setBusy(false);
}

export function startChat(headers, onRefused) {
  const send = () => {
    const text = at("message").value.trim();
    if (under_way || !text) return;
    at("message").value = "";
    messages.push({role: "user", content: text});
    say("You", text, true);
    ask(headers, onRefused);
  };
  const stop = () => {
    if (!under_way) return;
    under_way.abort();
    at("message").focus();
  };
  at("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  at("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  at("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  at("stop").addEventListener("click", stop);
  at("new-chat").addEventListener("click", () => {
    stop();
    messages.length = 0;
    at("log").replaceChildren(at("log-none"));
    at("log-none").hidden = false;
    at("message").focus();
  });
}
