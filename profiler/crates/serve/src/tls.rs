//! Keys of encrypted connections: PEM files -> what accepts them.
//!
//! TLS 1.2 and 1.3. With an authority of clients, a client without a certificate of it gets no connection. What does not belong
//! here: listening and admitting (`network` of each protocol).

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// Largest file that is read.
const MAX_BYTES: u64 = 4 << 20;

const CHAIN: &str = "the TLS certificate";
const KEY: &str = "the TLS key";
const AUTHORITY: &str = "the authority of TLS clients";

/// What a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Keys that a server shows, and those that it wants to see.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Clients must show a certificate that one of these has signed, PEM.
    pub client_authority: Option<PathBuf>,
}

/// Why nothing can be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("failed to read {what} {}: {source}", path.display())]
    Read {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{what} {}: {reason}", path.display())]
    Pem {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Agrees on keys with a client, which has not for ever; why not is for the log.
pub(crate) async fn agree<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &TlsAcceptor,
    stream: S,
    address: SocketAddr,
) -> Result<TlsStream<S>, String> {
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("no TLS with {address}: {error}")),
        Err(_) => Err(format!("{address} does not agree on keys for TLS")),
    }
}

/// Reads the files.
pub(crate) fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let wrong = |what, path: &Path, reason: String| TlsError::Pem {
        what,
        path: path.to_owned(),
        reason,
    };
    let chain = certificates(CHAIN, &options.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&contents(KEY, &options.key)?)
        .map_err(|error| wrong(KEY, &options.key, explained(&error, "private key")))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(KEY, &options.key, error.to_string()))?;
    let builder = match &options.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(AUTHORITY, path)? {
                let added = roots.add(certificate);
                added.map_err(|error| wrong(AUTHORITY, path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .map_err(|error| wrong(AUTHORITY, path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(|error| {
        let certificate = options.certificate.display();
        let reason = format!("it does not go with the certificate {certificate}: {error}");
        wrong(KEY, &options.key, reason)
    })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason| TlsError::Pem {
        what,
        path: path.to_owned(),
        reason,
    };
    let bytes = contents(what, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| wrong(explained(&error, "certificate")))?;
    match all.is_empty() {
        true => Err(wrong(explained(&pem::Error::NoItemsFound, "certificate"))),
        false => Ok(all),
    }
}

fn explained(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {wanted} in PEM in it"),
        error => format!("it is no {wanted} in PEM: {error}"),
    }
}

fn contents(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    // A pipe that nobody writes to would be waited for, and with it every signal to end.
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .and_then(|file| match file.metadata()?.file_type() {
            kind if kind.is_file() => Ok(file),
            kind if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::Error::other("it is no regular file")),
        })
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .and_then(|_| match bytes.len() as u64 {
            0..=MAX_BYTES => Ok(bytes),
            _ => Err(io::Error::other("it is larger than 4 MiB")),
        })
        .map_err(|source| TlsError::Read {
            what,
            path: path.to_owned(),
            source,
        })
}
