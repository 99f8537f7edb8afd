"""Make the certificates of one cluster: an authority, a certificate and key for each role, and Dask's settings for it.

With TLS, Dask accepts every client, scheduler and worker with a certificate signed by this authority. The authority's
own key is discarded, so that no further certificate can be signed; to renew the certificates, or to exclude somebody,
make a new folder.

    python make_certificates.py certificates --host node1 --host 10.0.0.5
    export DASK_CONFIG=$PWD/certificates/dask.yaml
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    sys.exit("error: making certificates needs the package cryptography. Install it: pip install cryptography")

ROLES = ("scheduler", "worker", "client")
ALWAYS = ("localhost", "127.0.0.1", "::1")

# Paths are absolute, because a Dask configuration cannot name a file relative to itself.
SETTINGS = """\
# Dask configuration: everybody shows a certificate and checks the other's. Use it with DASK_CONFIG=<this file>.
distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      min-version: 1.2
      ca-file: "{at}/ca.pem"
"""
ROLE_SETTINGS = """\
      {role}:
        cert: "{at}/{role}.pem"
        key: "{at}/{role}-key.pem"
"""


def make(folder: Path, *, hosts: Sequence[str] = (), days: int = 365, at: str | None = None) -> list[Path]:
    """Write the files, each readable by its owner only; refuse to replace existing files.

    Parameters
    ----------
    folder
        Folder for the files; created if it does not exist.
    hosts
        Names and addresses for the scheduler's and the worker's certificates, in addition to this machine.
    days
        Days for which the certificates are valid.
    at
        Path of the folder where it will be used, if it is copied; by default the path where it is made.
    """
    contents = _contents(hosts, days, at or str(folder.absolute()))
    files = [folder / name for name in contents]
    there = [str(file) for file in files if os.path.lexists(file)]
    if there:
        raise FileExistsError(f"certificates are never overwritten, and {', '.join(there)} exist. Give another folder.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in zip(files, contents.values(), strict=True):
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
    return files


def _contents(hosts: Sequence[str], days: int, at: str) -> dict[str, bytes]:
    """Return the contents of the files, by name."""
    if days < 1:
        raise ValueError(f"certificates must hold for at least one day; got --days {days}.")
    authority_key = generate_private_key(SECP256R1())
    authority = _authority(authority_key, days)
    contents = {"ca.pem": authority.public_bytes(Encoding.PEM)}
    for role in ROLES:
        key = generate_private_key(SECP256R1())
        certificate = _certificate(role, key, authority, authority_key, [*ALWAYS, *hosts])
        contents[f"{role}.pem"] = certificate.public_bytes(Encoding.PEM)
        contents[f"{role}-key.pem"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    settings = SETTINGS.format(at=at) + "".join(ROLE_SETTINGS.format(role=role, at=at) for role in ROLES)
    return contents | {"dask.yaml": settings.encode()}


def _authority(key: EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rgcss cluster authority")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # the clocks of a cluster differ slightly
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def _certificate(
    role: str,
    key: EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"rgcss {role}")])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role != "client":  # schedulers and workers accept and open connections; a client only opens them
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = x509.CertificateBuilder(issuer_name=authority.subject, subject_name=name, public_key=key.public_key())
    builder = (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if role != "client":
        names = x509.SubjectAlternativeName([_alternative_name(host) for host in dict.fromkeys(hosts)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority_key, SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def main() -> None:
    """Parse the command line, make the files, and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder; created if it does not exist")
    parser.add_argument("--host", action="append", default=[], help="name or address of a host; may be repeated")
    parser.add_argument("--days", type=int, default=365, help="days of validity (default: %(default)s)")
    parser.add_argument("--at", help="path of the folder where it is used, if it is copied (default: FOLDER)")
    given = parser.parse_args()
    try:
        files = make(given.folder, hosts=given.host, days=given.days, at=given.at)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    for file in files:
        print(file)


if __name__ == "__main__":
    main()
