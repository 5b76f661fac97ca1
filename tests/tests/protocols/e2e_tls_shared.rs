//! Certificates for servers and clients, and a client that wants them.
//!
//! What does not belong here: what is right (the tests).

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use profiler_tests::process::run;
use profiler_tests::setting::{LIMIT, Setting};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::e2e_http_shared::Timed;
use crate::e2e_tcf_shared::Failure;

/// Whether there is what makes certificates.
pub(crate) fn can_be_made() -> bool {
    Path::new("/usr/bin/openssl").exists()
}

/// An authority `NAME.pem`, and what it has signed: `NAME-host.pem` with its key `NAME-host.key`, for loopback and this address.
pub(crate) fn certificates(setting: &Setting, name: &str, address: IpAddr) -> Result<(), Failure> {
    let script = format!(
        "set -e
         openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} \
             -keyout {name}.key -out {name}.pem -addext basicConstraints=critical,CA:TRUE \
             -addext keyUsage=keyCertSign
         openssl req -newkey rsa:2048 -nodes -subj /CN={name}-host \
             -keyout {name}-host.key -out {name}-host.csr
         printf 'subjectAltName=IP:127.0.0.1,IP:{address}\\nbasicConstraints=CA:FALSE\\n' >ext
         openssl x509 -req -in {name}-host.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial \
             -days 2 -extfile ext -out {name}-host.pem"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(setting.folder());
    run(&mut command, setting.folder(), "openssl", LIMIT)?.success()?;
    Ok(())
}

/// An encrypted connection.
pub(crate) type Encrypted = StreamOwned<ClientConnection, TcpStream>;

impl Timed for Encrypted {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.sock.set_read_timeout(Some(time))
    }
}

/// Connects to a server that must show a certificate of the authority `trusted`, and shows that of `shown`.
pub(crate) fn connect(
    setting: &Setting,
    address: SocketAddr,
    trusted: &str,
    shown: Option<&str>,
) -> Result<Encrypted, Failure> {
    let file = |name: String| setting.folder().join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file(format!(
        "{trusted}.pem"
    )))?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some(name) => config.with_client_auth_cert(
            vec![CertificateDer::from_pem_file(file(format!(
                "{name}-host.pem"
            )))?],
            PrivateKeyDer::from_pem_file(file(format!("{name}-host.key")))?,
        )?,
    };
    let name = ServerName::IpAddress(address.ip().into());
    let connection = ClientConnection::new(Arc::new(config), name)?;
    Ok(StreamOwned::new(connection, TcpStream::connect(address)?))
}
