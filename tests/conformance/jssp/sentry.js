// @sentry/browser as a reader of ProfilerTraces: what its own conversion makes of one, and whether it takes it.
//
// node sentry.js FOLDER-OF-PACKAGES < TRACE -> {samples, stacks, frames, functions, valid}
"use strict";
const path = require("path");
const fs = require("fs");
const utils = require(
  path.join(process.argv[2], "node_modules/@sentry/browser/build/npm/cjs/prod/profiling/utils.js"),
);
const trace = JSON.parse(fs.readFileSync(0, "utf8"));
const profile = utils.convertJSSelfProfileToSampledFormat(structuredClone(trace));
const client = { getOptions: () => ({}), getSdkMetadata: () => undefined };
// What it sends: it finds out by itself whether that is right.
const chunk = utils.createProfileChunkPayload(structuredClone(trace), client);
console.log(
  JSON.stringify({
    samples: profile.samples.length,
    withStack: profile.samples.filter((sample) => profile.stacks[sample.stack_id].length > 0).length,
    functions: profile.frames.filter((frame) => frame).map((frame) => frame.function),
    paths: profile.frames.every((frame) => frame.abs_path === undefined || frame.abs_path.length > 0),
    elapsed: profile.samples.map((sample) => Number(sample.elapsed_since_start_ns)),
    valid: utils.validateProfileChunk(chunk),
  }),
);
