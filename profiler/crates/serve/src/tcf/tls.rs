//! Keys of the transport `SSL`: PEM files -> what accepts encrypted connections.
//!
//! TLS 1.2 and 1.3. With an authority of clients, a client without a certificate of it gets no
//! channel. What does not belong here: sockets.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::error::TcfError;
use super::options::TlsOptions;

/// Largest file that is read.
const MAX_BYTES: u64 = 4 << 20;

const CHAIN: &str = "the TLS certificate";
const KEY: &str = "the TLS key";
const AUTHORITY: &str = "the authority of TLS clients";

/// Reads the files.
pub(super) fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor, TcfError> {
    let provider = Arc::new(ring::default_provider());
    let wrong = |what, path: &Path, reason: String| TcfError::Pem {
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

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TcfError> {
    let wrong = |reason| TcfError::Pem {
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

fn contents(what: &'static str, path: &Path) -> Result<Vec<u8>, TcfError> {
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
        .map_err(|source| TcfError::Read {
            what,
            path: path.to_owned(),
            source,
        })
}
