//! Events of a recording -> data messages of Bytefrog, with stacks that balance.
//!
//! Times become milliseconds since tracing began. What does not belong here: sockets and buffers.
