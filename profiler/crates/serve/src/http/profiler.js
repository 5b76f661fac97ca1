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

  // A value as an `unsigned long` and as a `double` of WebIDL; symbols and BigInts are neither, which `+` says.
  const unsignedLong = (value) => +value >>> 0;
  const double = (name, value) => {
    const number = +value;
    if (!Number.isFinite(number)) throw new TypeError(`${name} is no finite number`);
    return number;
  };

  const targetOf = (value) => {
    const isId = (id) => Number.isInteger(id) && id > 0 && id < 2 ** 32;
    const { pid, tid } = typeof value === "number" ? { pid: value } : Object(value);
    if (isId(pid) && tid == null) return { pid };
    if (isId(tid) && pid == null) return { tid };
    throw new TypeError("target is neither { pid: NUMBER } nor { tid: NUMBER }");
  };

  const authorized = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

  // What becomes of the page's sessions: one stream of all, since a browser keeps few connections to a server. The
  // sessions end with it.
  const events = {
    context: String(Math.random()).slice(2),
    // How each session is told, by id, and what is for sessions whose id has not come yet.
    sessions: new Map(),
    early: new Map(),
    expected: 0,
    stream: undefined,

    add(id, tell, token) {
      this.sessions.set(id, tell);
      for (const told of this.early.get(id) || []) tell(...told);
      if (!this.stream) this.listen((this.stream = new AbortController()), authorized(token));
    },

    remove(id) {
      this.sessions.delete(id);
      if (this.sessions.size || !this.stream) return;
      this.stream.abort();
      this.stream = undefined;
    },

    // Again when it is cut off, as long as the sessions are kept without it.
    async listen({ signal }, headers) {
      for (let times = 0; times < 5 && !signal.aborted; times++) {
        try {
          const url = `${server}/events?context=${this.context}`;
          const answer = await fetch(url, { headers, credentials: "omit", signal });
          const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
          let read = "";
          for (let next = await text.read(); !next.done; next = await text.read()) {
            times = 0;
            read += next.value;
            const told = read.split("\n\n");
            read = told.pop();
            told.forEach((one) => this.told(one));
          }
        } catch (reason) {
          // The server has ended, or cannot be reached for now.
        }
        await new Promise((done) => setTimeout(done, 1000));
      }
      if (this.stream && this.stream.signal === signal) this.stream = undefined;
    },

    told(one) {
      const name = (one.match(/^event: (.*)$/m) || [])[1];
      const data = (one.match(/^data: (.*)$/m) || [])[1];
      if (!name || !data) return;
      const { session, ...says } = JSON.parse(data);
      const tell = this.sessions.get(session);
      if (tell) tell(name, says);
      else if (this.expected) this.early.set(session, [...(this.early.get(session) || []), [name, says]]);
    },
  };

  class Profiler extends EventTarget {
    #interval;
    #stopped = false;
    #full = false;
    #hidden = () => this.#follow();
    #pauses;
    #token;
    #id;
    // What the server's clock shows at 0 of performance.now(), and when the session began on that scale.
    #clock = 0;
    #origin = 0;
    #calls = Promise.resolve();

    constructor(options) {
      super();
      if (options === null || (typeof options !== "object" && typeof options !== "function")) {
        throw new TypeError("ProfilerInitOptions are an object");
      }
      const member = (name, convert) => {
        const value = options[name];
        if (value === undefined) throw new TypeError(`${name} is missing`);
        return convert(value);
      };
      const maxBufferSize = member("maxBufferSize", unsignedLong);
      this.#pauses = options.pauseWhenHidden !== false;
      const asked = member("sampleInterval", (value) => double("sampleInterval", value));
      const chosen = options.target;
      const target = targetOf(chosen === undefined ? served.target : chosen);
      this.#token = options.token;
      if (asked < 0) throw new RangeError("sampleInterval is less than 0");
      if (asked > served.longestInterval) {
        throw new RangeError(`sampleInterval is more than ${served.longestInterval}`);
      }
      if (maxBufferSize > served.maxBufferSize) {
        throw new RangeError(`maxBufferSize is more than ${served.maxBufferSize}`);
      }
      if (!served.jsProfiling) {
        throw new DOMException("js-profiling is not allowed here", "NotAllowedError");
      }
      this.#interval = effective(asked);
      this.clockError = undefined;
      this.traces = undefined;
      this.ready = this.#begin({
        sampleInterval: asked,
        maxBufferSize,
        target,
        context: events.context,
        whileListened: true,
        paused: this.#pauses && document.hidden,
      });
      this.ready.catch((reason) => {
        this.#end();
        events.remove(this.#id);
        this.dispatchEvent(Object.assign(new Event("error"), { error: reason }));
      });
      document.addEventListener("visibilitychange", this.#hidden);
    }

    get sampleInterval() {
      return this.#interval;
    }

    get stopped() {
      return this.#stopped;
    }

    async stop() {
      const at = performance.now();
      if (this.#stopped && !this.#full) {
        throw new DOMException("the profiler is stopped", "InvalidStateError");
      }
      this.#full = false;
      this.#end();
      return this.#call(async () => {
        await this.ready;
        try {
          return this.#traces(await this.#ask("POST", `/session/${this.#id}/stop?at=${at + this.#clock}`));
        } finally {
          events.remove(this.#id);
        }
      });
    }

    async pause() {
      return this.#call(() => this.#set("pause"));
    }

    async resume() {
      return this.#call(() => this.#set("resume"));
    }

    async forceSample() {
      return this.#call(() => this.#set("forcesample"));
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
      events.expected++;
      let about;
      try {
        about = await this.#ask("POST", "/session", body);
        this.#id = about.id;
        if (about.sampleInterval !== this.#interval) this.#interval = about.sampleInterval;
        events.add(this.#id, (name, says) => this.#tell(name, says), this.#token);
      } finally {
        if (!--events.expected) events.early.clear();
      }
      await this.#agree();
      this.#origin = about.timeOrigin - this.#clock;
    }

    // The answer came between the two readings of the page's clock, so half of what the fastest one took is the error.
    // Times of the server are multiples of its resolution: those of samples and that of the answer are late by up to one.
    async #agree() {
      let best = Infinity;
      for (let times = 0; times < 5; times++) {
        const before = performance.now();
        const { now } = await this.#ask("GET", "/clock");
        const took = performance.now() - before;
        if (took < best) {
          best = took;
          this.#clock = now - before - took / 2;
        }
      }
      this.clockError = best / 2 + served.timestampResolution;
    }

    #traces({ traces, ...trace }) {
      const of = traces ? traces.map((of) => of.trace) : [trace];
      for (const { samples } of of) {
        for (const sample of samples) sample.timestamp += this.#origin;
      }
      this.traces = traces;
      return of.length ? of[0] : { resources: [], frames: [], stacks: [], samples: [] };
    }

    async #ask(method, path, body) {
      const headers = authorized(this.#token);
      if (body) headers["Content-Type"] = "application/json";
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

    #tell(name, says) {
      if (name === "samplebufferfull") {
        this.dispatchEvent(Object.assign(new Event("samplebufferfull"), says));
      } else if (name === "state") {
        if (says.state === "stopped" && !this.#stopped) {
          this.#full = true;
          this.#end();
        }
        this.dispatchEvent(Object.assign(new Event("statechange"), says));
      }
    }
  }

  // As WebIDL makes interfaces of their descriptions.
  const enumerable = { enumerable: true };
  Object.defineProperties(Profiler.prototype, {
    sampleInterval: enumerable,
    stopped: enumerable,
    stop: enumerable,
    [Symbol.toStringTag]: { value: "Profiler", configurable: true },
  });
  Object.defineProperty(globalThis, "Profiler", { value: Profiler, writable: true, configurable: true });
})();
