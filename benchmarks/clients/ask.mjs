// Asks a server of OpenAI's API by one of the clients for Node: a prompt a line, an answer a line.
//
//     node ask.mjs openai http://localhost:8000/v1 KEY MODEL < prompts.jsonl
//
// Knows nothing of RAGCache. Needs the client that it is to be: openai, @langchain/openai, or ai with
// @ai-sdk/openai-compatible.

import { createInterface } from "node:readline";

const SYSTEM = "You answer questions from the documents you are given.";
const MOST_TOKENS = 8;

async function openai(url, key, model) {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: url, apiKey: key });
  return async function* (prompt) {
    const pieces = await client.chat.completions.create({
      model,
      messages: [
        { role: "system", content: SYSTEM },
        { role: "user", content: prompt },
      ],
      max_tokens: MOST_TOKENS,
      temperature: 0,
      stream: true,
    });
    for await (const piece of pieces) yield piece.choices[0]?.delta?.content ?? "";
  };
}

async function langchain(url, key, model) {
  const { ChatOpenAI } = await import("@langchain/openai");
  const llm = new ChatOpenAI({
    model,
    apiKey: key,
    configuration: { baseURL: url },
    maxTokens: MOST_TOKENS,
    temperature: 0,
  });
  return async function* (prompt) {
    const pieces = await llm.stream([
      ["system", SYSTEM],
      ["user", prompt],
    ]);
    for await (const piece of pieces) yield String(piece.content);
  };
}

async function vercel(url, key, model) {
  const { streamText } = await import("ai");
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({ name: "ours", baseURL: url, apiKey: key });
  return async function* (prompt) {
    const answer = streamText({
      model: provider(model),
      system: SYSTEM,
      prompt,
      maxOutputTokens: MOST_TOKENS,
      temperature: 0,
    });
    for await (const piece of answer.textStream) yield piece;
  };
}

const CLIENTS = { openai, langchain, vercel };
const [name, url, key, model] = process.argv.slice(2);
const ask = await CLIENTS[name](url, key, model);
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const began = performance.now();
  let first = null;
  let text = "";
  for await (const piece of ask(JSON.parse(line))) {
    if (piece && first === null) first = (performance.now() - began) / 1000;
    text += piece;
  }
  console.log(JSON.stringify({ ttft_s: first, text }));
}
