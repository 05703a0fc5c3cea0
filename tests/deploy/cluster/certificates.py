"""Certificates as cert-manager would issue them, by openssl."""

import tempfile
import pathlib

from .machine import run

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    def __init__(self):
        self.kept = tempfile.TemporaryDirectory(prefix="penstock-ca-")
        self.folder = pathlib.Path(self.kept.name)
        run("openssl", "req", "-x509", *KEY, "-days", "30", "-subj", "/CN=test-ca", "-addext", "basicConstraints=critical,CA:TRUE",
            "-keyout", self.folder / "ca.key", "-out", self.folder / "ca.crt")
        self.text = (self.folder / "ca.crt").read_text()

    def issue(self, names, starts="", ends=""):
        """The data of a Secret of type kubernetes.io/tls, for alternative names as openssl writes them ("DNS:a", "IP:::1").
        `starts` and `ends` are times as YYYYMMDDHHMMSSZ; without them the certificate is valid for a day."""
        with tempfile.TemporaryDirectory() as made:
            path = pathlib.Path(made)
            (path / "ext").write_text(f"subjectAltName={','.join(names)}\n")
            (path / "index").write_text("")
            (path / "serial").write_text(f"{id(path) & 0xffffff:06X}\n")
            (path / "ca.cnf").write_text(
                f"[ca]\ndefault_ca=own\n[own]\ndatabase={path}/index\nnew_certs_dir={path}\nserial={path}/serial\n"
                f"certificate={self.folder}/ca.crt\nprivate_key={self.folder}/ca.key\ndefault_md=sha256\npolicy=any\nunique_subject=no\n"
                "[any]\ncommonName=supplied\n")
            run("openssl", "req", *KEY, "-subj", "/CN=penstock", "-keyout", path / "tls.key", "-out", path / "tls.csr")
            times = ["-startdate", starts, "-enddate", ends] if ends else ["-days", "1"]
            run("openssl", "ca", "-batch", "-notext", "-config", path / "ca.cnf", "-in", path / "tls.csr", "-out", path / "tls.crt",
                "-extfile", path / "ext", *times)
            return {"tls.crt": (path / "tls.crt").read_text(), "tls.key": (path / "tls.key").read_text(), "ca.crt": self.text}
