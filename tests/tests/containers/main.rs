//! Containers and cgroups, recorded by name, from outside and from inside.

mod e2e_containers;
mod e2e_containers_harness;
mod e2e_containers_runtimes;
mod e2e_containers_shared;
mod e2e_in_container;
mod e2e_targets_cgroups;
mod e2e_users_engines;
