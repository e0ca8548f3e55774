// Talks to an agent with the official AG-UI client, which rejects anything that its protocol does not allow.
// Arguments: the folder with the client, and JSON {url, headers, messages, stop, reload}.
// Prints JSON: the outcome of each run, and the client's messages at the end.
import { createRequire } from "node:module";

const { HttpAgent } = createRequire(`${process.argv[2]}/`)("@ag-ui/client");
const { url, headers = {}, messages, stop = "" } = JSON.parse(process.argv[3]);
const agent = new HttpAgent({ url, headers, threadId: "t" });
const runs = [];
for (const [index, content] of messages.entries()) {
  agent.addMessage({ id: `user-${index}`, role: "user", content });
  const run = { events: [], outcome: null, error: null };
  runs.push(run);
  const watch = {
    onEvent: ({ event }) => {
      run.events.push(event.type);
      if (event.type === stop) agent.abortRun();
    },
    onRunFinishedEvent: ({ event, outcome, interrupts }) => {
      run.outcome = outcome;
      run.result = event.result;
      run.interrupts = interrupts;
    },
    onRunErrorEvent: ({ event }) => { run.error = event; },
  };
  try {
    await agent.runAgent({ runId: `run-${index}` }, watch);
  } catch (error) {
    run.thrown = String(error);
  }
}
console.log(JSON.stringify({ runs, messages: agent.messages }));
