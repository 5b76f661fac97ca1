// A client made with @cliqz-oss/firefox-client: what it gets of a server of the remote debugging protocol, as JSON.
//
// Usage: node firefox_client.js PORT PID N   The program PID is asked through our own standard output and input to call
// its functions N times: a line `run` out, a line in when that is done. Last line of the output: a summary.

"use strict";

const FirefoxClient = require("@cliqz-oss/firefox-client");
const [port, pid, count] = process.argv.slice(2).map(Number);

const client = new FirefoxClient();
client.on("error", (error) => {
  throw error;
});
client.connect(port, "127.0.0.1", async () => {
  const tabs = await new Promise((resolve, reject) =>
    client.listTabs((error, tabs) => (error ? reject(error) : resolve(tabs))));
  const tab = tabs.find((tab) => tab.tab.processID === pid);
  const actor = tab.tab.traceActor;
  const wire = client.client;
  const ask = (type, more) =>
    new Promise((resolve) => wire.makeRequest({ to: actor, type, ...more }, resolve));
  const attached = await new Promise((resolve, reject) =>
    tab.attach((error, answer) => (error ? reject(error) : resolve(answer))));
  const frames = [];
  // Without a table of events it takes what comes while an answer is waited for as that answer.
  wire.on("message", (packet) => {
    if (packet.from === actor) frames.push(packet);
  });
  const errors = [(await ask("stopTrace")).error];
  const types = (await ask("attach")).traceTypes;
  const wanted = { trace: ["name", "depth"], functions: ["main:outer", "main:leaf"] };
  const started = await ask("startTrace", wanted);
  process.stdout.write(`run ${count}\n`);
  await new Promise((resolve) => process.stdin.once("data", resolve));
  // All that was called has come when nothing comes any more.
  for (let before = -1; before !== frames.length;) {
    before = frames.length;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  const stopped = await ask("stopTrace");
  const detached = await ask("detach");
  console.log(JSON.stringify({
    threadActor: attached.threadActor !== undefined,
    errors,
    types: types.length,
    started: started.type,
    stopped: stopped.type,
    detached: detached.type,
    whole: frames.every((frame, index) => frame.sequence === index),
    entered: frames.filter((frame) => frame.type === "enteredFrame").length,
    exited: frames.filter((frame) => frame.type === "exitedFrame").length,
  }));
  process.stdin.destroy();
  client.disconnect();
});
