//! TLS 1.3 between machines that have neither certificates nor trustworthy clocks.
//!
//! Place in the flow: sets up the encrypted connection over which both ends then prove the cluster key.
//!
//! Invariants: TLS 1.3 with X25519 and nothing older or weaker; ChaCha20-Poly1305 unless both ends have AES
//! instructions; no resumption, no tickets, no early data, so that nothing can be replayed. The listener's key is
//! an Ed25519 key made at the start of the process, sent as a raw public key (RFC 7250): no name, no date, no
//! authority. The proof of the cluster key authenticates it: the proof covers a number that TLS derives for this
//! connection only (exporter), and a man in the middle has two connections with two different numbers.
//!
//! Deliberately absent: the cluster key.

use crate::LinkError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring as provider;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme,
};
use std::sync::Arc;

/// The TLS configurations of both roles.
pub(crate) struct TlsConfig {
    dialling: Arc<ClientConfig>,
    listening: Arc<ServerConfig>,
}

impl TlsConfig {
    /// A configuration with a new key for this process.
    pub(crate) fn new() -> Result<Self, LinkError> {
        Self::with_aes(has_aes())
    }

    /// The same for a machine with or without AES instructions.
    pub(crate) fn with_aes(has_aes: bool) -> Result<Self, LinkError> {
        Self::build(has_aes).map_err(|e| LinkError::Untrusted(format!("TLS cannot be set up here: {e}")))
    }

    fn build(has_aes: bool) -> Result<Self, Error> {
        let mut suites = vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        if !has_aes {
            suites.reverse();
        }
        let provider = Arc::new(CryptoProvider {
            cipher_suites: suites,
            kx_groups: vec![provider::kx_group::X25519],
            ..provider::default_provider()
        });
        let algorithms = provider.signature_verification_algorithms;
        let mut dialling = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyRawKey(algorithms)))
            .with_no_client_auth();
        dialling.resumption = rustls::client::Resumption::disabled();
        dialling.enable_sni = false;
        let mut listening = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(fresh_key()?)));
        listening.send_tls13_tickets = 0;
        // The first known suite of the dialler's list is chosen: AES if both ends put it first.
        listening.ignore_client_order = !has_aes;
        Ok(Self { dialling: Arc::new(dialling), listening: Arc::new(listening) })
    }

    pub(crate) fn dial(&self) -> Result<Connection, Error> {
        // TLS requires a name; it is neither sent nor checked.
        let name = ServerName::try_from("bramble").map_err(|e| Error::General(e.to_string()))?;
        Ok(ClientConnection::new(self.dialling.clone(), name)?.into())
    }

    /// For tests in the role of a stranger.
    #[cfg(test)]
    pub(crate) fn dialling(&self) -> ClientConfig {
        (*self.dialling).clone()
    }

    pub(crate) fn listen(&self) -> Result<Connection, Error> {
        Ok(ServerConnection::new(self.listening.clone())?.into())
    }
}

/// A new key pair.
fn fresh_key() -> Result<Arc<CertifiedKey>, Error> {
    let random = ring::rand::SystemRandom::new();
    let pair = ring::signature::Ed25519KeyPair::generate_pkcs8(&random);
    let pair = pair.map_err(|_| Error::FailedToGetRandomBytes)?;
    let signer = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pair.as_ref()))?;
    let public = signer.public_key().ok_or_else(|| Error::General("no public key".to_owned()))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], signer)))
}

/// Whether this processor has AES instructions; without them AES is slow.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    false
}

/// Accepts any raw public key whose holder has signed this handshake.
#[derive(Debug)]
struct AnyRawKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyRawKey {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
