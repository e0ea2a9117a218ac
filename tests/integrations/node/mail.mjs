// The npm package `openai`, every second turn streamed.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(process.env.INBOX, "utf-8"));
const client = new OpenAI();

function search({ keyword }) {
  const words = keyword.toLowerCase().split(/\s+/).filter(Boolean);
  const found = given.mails.filter((mail) => words.every((word) => [mail.project, mail.role].includes(word)));
  return found.slice(0, 5).map((mail) => `${mail.project} ${mail.role} ${mail.id}`).join("\n") || "nothing";
}

function read({ id }) {
  const mail = given.mails.find((one) => one.id === id);
  return mail ? `The ${mail.role} of ${mail.project} is ${mail.name}.` : "no such mail";
}

function schema(name, parameter, description) {
  const parameters = { type: "object", properties: { [parameter]: { type: "string" } }, required: [parameter] };
  return { type: "function", function: { name, description, parameters } };
}

const tools = [
  schema("search", "keyword", "List up to five mails whose subject contains every word of the keyword."),
  schema("read", "id", "Read the mail with this id."),
  schema("answer", "text", "Give the answer to the question; this ends the conversation."),
];

async function ask(messages, streamed) {
  const body = { model: process.env.MODEL, messages, tools, temperature: 0.05, max_tokens: 48 };
  if (streamed) return (await client.chat.completions.stream(body).finalChatCompletion()).choices[0].message;
  return (await client.chat.completions.create(body)).choices[0].message;
}

async function main() {
  const messages = [
    { role: "system", content: "You answer questions about an inbox." },
    { role: "user", content: given.question },
  ];
  for (let turn = 0; turn < 6; turn++) {
    const message = await ask(messages, turn % 2 === 1);
    messages.push(message);
    for (const call of message.tool_calls ?? []) {
      const input = JSON.parse(call.function.arguments);
      if (call.function.name === "answer") return input.text;
      const content = call.function.name === "search" ? search(input) : read(input);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
  return null;
}

console.log(JSON.stringify({ answer: await main() }));
