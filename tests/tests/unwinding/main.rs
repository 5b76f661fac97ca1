//! Stacks and names: unwind tables and rules, walkers that judge them, runtimes, and the resolver.
//!
//! What does not belong here: walks by the kernel side alone (`probes`).

mod e2e_unwinding;
mod resolve;
mod runtimes_go;
mod runtimes_jit;
mod runtimes_python;
mod unwind_oracle;
mod unwind_rules;
#[cfg(test)]
mod unwind_shared;
mod unwind_tables;
