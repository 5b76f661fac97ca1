//! Bytefrog, TCF and the remote debugging protocol over connections: agents, receivers, servers and clients, well-behaved or not, with
//! made-up data and, in the modules whose names begin with `e2e_`, with programs that run.
//!
//! What does not belong here: the bytes of single messages (`formats`).

mod bytefrog_agent;
mod bytefrog_agent_faults;
mod bytefrog_agent_shared;
mod bytefrog_conformance;
mod e2e_bytefrog;
mod e2e_bytefrog_faults;
mod e2e_bytefrog_shared;
mod e2e_bytefrog_window;
mod e2e_elsewhere;
mod e2e_http;
mod e2e_http_shared;
mod e2e_rdp;
mod e2e_rdp_marks;
mod e2e_rdp_shared;
mod e2e_serve_soak;
mod e2e_stream;
mod e2e_stream_shared;
mod e2e_tcf;
mod e2e_tcf_access;
mod e2e_tcf_lifecycle;
mod e2e_tcf_many;
mod e2e_tcf_processes;
mod e2e_tcf_shared;
mod e2e_tcf_soak;
mod e2e_tls_shared;
mod e2e_together;
mod hq;
mod hq_bounds;
mod hq_captures;
mod hq_cost;
mod hq_shared;
mod http_conformance;
mod rdp_conformance;
mod rdp_replay;
mod tcf_channel;
mod tcf_channel_bounds;
mod tcf_channel_sockets;
mod tcf_client;
mod tcf_replay;
