// The interface of "JS Self-Profiling API" (WICG), for processes of the machine that serves this file.
//
//   <script src="http://127.0.0.1:8977/profiler.js" crossorigin></script>
//   const profiler = new Profiler({ sampleInterval: 10, maxBufferSize: 10000, target: { pid: 1234 } });
//   const trace = await profiler.stop();
//
// Beside what the specification has: `target`; `pauseWhenHidden` (true: as it recommends); `token`, for a server on
// another machine; `ready`, which is fulfilled when the session has begun, or rejected with the reason why not;
// `clockError`, the error of timestamps in milliseconds; pause() and resume(); the events `statechange` and `error`.
// Timestamps are on the scale of performance.now(). `traces` has the traces of all threads, if a process was meant.
(() => {
  "use strict";
  const served = /* served */ {};
  const script = document.currentScript;
  const server = new URL(script ? script.src : location.href).origin;

  // The nearest interval at or above the one that was asked for.
  const effective = (asked) => {
    const multiple = (of) => of * Math.max(1, Math.ceil((asked / of) * (1 - 1e-9)));
    const fine = multiple(served.fineInterval);
    const interval = fine < served.coarseInterval ? fine : multiple(served.coarseInterval);
    return Math.round(interval * 1e6) / 1e6;
  };

  const failure = ({ error, message }) => {
    if (error === "TypeError") return new TypeError(message);
    if (error === "RangeError") return new RangeError(message);
    return new DOMException(message, error || "OperationError");
  };

  const unsignedLong = (value) => {
    const number = Number(value);
    return Number.isFinite(number) ? Math.trunc(number) >>> 0 : 0;
  };

  class Profiler extends EventTarget {
    #interval;
    #stopped = false;
    #full = false;
    #hidden = () => this.#follow();
    #pauses;
    #token;
    #id;
    #offset = 0;
    #events = new AbortController();
    #calls = Promise.resolve();

    constructor(options) {
      super();
      if (options === null || (typeof options !== "object" && typeof options !== "function")) {
        throw new TypeError("ProfilerInitOptions are an object");
      }
      for (const name of ["maxBufferSize", "sampleInterval"]) {
        if (options[name] === undefined) throw new TypeError(`${name} is missing`);
      }
      const maxBufferSize = unsignedLong(options.maxBufferSize);
      const asked = Number(options.sampleInterval);
      if (!Number.isFinite(asked)) throw new TypeError("sampleInterval is no finite number");
      if (asked < 0) throw new RangeError("sampleInterval is less than 0");
      if (maxBufferSize > served.maxBufferSize) {
        throw new RangeError(`maxBufferSize is more than ${served.maxBufferSize}`);
      }
      const target = options.target === undefined ? served.target : options.target;
      if (target === undefined) throw new TypeError("target is missing");
      if (!served.jsProfiling) {
        throw new DOMException("js-profiling is not allowed here", "NotAllowedError");
      }
      this.#interval = effective(asked);
      this.#pauses = options.pauseWhenHidden !== false;
      this.#token = options.token;
      this.clockError = undefined;
      this.traces = undefined;
      const body = { sampleInterval: asked, maxBufferSize, target, context: Profiler.#context };
      this.ready = this.#begin(body);
      this.ready.catch((reason) => {
        this.#end();
        this.dispatchEvent(Object.assign(new Event("error"), { error: reason }));
      });
      document.addEventListener("visibilitychange", this.#hidden);
    }

    static #context = String(Math.random()).slice(2);

    get sampleInterval() {
      return this.#interval;
    }

    get stopped() {
      return this.#stopped;
    }

    stop() {
      if (this.#stopped && !this.#full) {
        return Promise.reject(new DOMException("the profiler is stopped", "InvalidStateError"));
      }
      this.#full = false;
      this.#end();
      return this.#call(async () => {
        await this.ready;
        const answer = await this.#ask("POST", `/session/${this.#id}/stop`);
        this.#events.abort();
        const traces = answer.traces;
        if (traces) {
          for (const of of traces) this.#shift(of.trace);
          this.traces = traces;
          return traces.length ? traces[0].trace : { resources: [], frames: [], stacks: [], samples: [] };
        }
        return this.#shift(answer);
      });
    }

    pause() {
      return this.#call(() => this.#set("pause"));
    }

    resume() {
      return this.#call(() => this.#set("resume"));
    }

    forceSample() {
      return this.#call(async () => {
        await this.ready;
        await this.#ask("POST", `/session/${this.#id}/forcesample`);
      });
    }

    // One after the other, in the order in which they were called.
    #call(what) {
      const called = this.#calls.then(what);
      this.#calls = called.catch(() => {});
      return called;
    }

    async #set(what) {
      await this.ready;
      await this.#ask("POST", `/session/${this.#id}/${what}`);
    }

    #end() {
      this.#stopped = true;
      document.removeEventListener("visibilitychange", this.#hidden);
    }

    #follow() {
      if (this.#pauses && !this.#stopped) {
        (document.hidden ? this.pause() : this.resume()).catch(() => {});
      }
    }

    async #begin(body) {
      const about = await this.#ask("POST", "/session", body);
      this.#id = about.id;
      if (about.sampleInterval !== this.#interval) this.#interval = about.sampleInterval;
      await this.#agree(about.timeOrigin);
      this.#listen();
      if (document.hidden && this.#pauses) await this.#ask("POST", `/session/${this.#id}/pause`);
    }

    // What the server's clock shows at 0 of performance.now(): the answer came between the two readings of it, so half
    // of what the fastest one took is the error.
    async #agree(timeOrigin) {
      let best = Infinity;
      for (let times = 0; times < 5; times++) {
        const before = performance.now();
        const { now } = await this.#ask("GET", "/clock");
        const took = performance.now() - before;
        if (took < best) {
          best = took;
          this.#offset = timeOrigin - (now - before - took / 2);
        }
      }
      this.clockError = best / 2;
    }

    #shift(trace) {
      for (const sample of trace.samples) sample.timestamp += this.#offset;
      return trace;
    }

    async #ask(method, path, body) {
      const headers = body ? { "Content-Type": "application/json" } : {};
      if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
      const answer = await fetch(server + path, {
        method,
        headers,
        body: body && JSON.stringify(body),
        credentials: "omit",
      });
      const said = await answer.json();
      if (!answer.ok) throw failure(said);
      return said;
    }

    async #listen() {
      const headers = this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
      try {
        const answer = await fetch(`${server}/session/${this.#id}/events`, {
          headers,
          credentials: "omit",
          signal: this.#events.signal,
        });
        const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let read = "";
        for (let next = await text.read(); !next.done; next = await text.read()) {
          read += next.value;
          const told = read.split("\n\n");
          read = told.pop();
          told.forEach((one) => this.#tell(one));
        }
      } catch (reason) {
        // The session has ended, or the server has.
      }
    }

    #tell(told) {
      const name = (told.match(/^event: (.*)$/m) || [])[1];
      const says = (told.match(/^data: (.*)$/m) || [])[1];
      if (name === "samplebufferfull") {
        this.dispatchEvent(Object.assign(new Event("samplebufferfull"), JSON.parse(says)));
      } else if (name === "state") {
        const { state, why } = JSON.parse(says);
        if (state === "stopped" && !this.#stopped) {
          this.#full = true;
          this.#end();
        }
        this.dispatchEvent(Object.assign(new Event("statechange"), { state, why }));
      }
    }
  }

  globalThis.Profiler = Profiler;
})();
