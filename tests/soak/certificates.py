"""The cluster's CA and the certificates that it signs. With them a damaged control connection is noticed by TLS; without,
a flipped bit of a token would be a token."""

import subprocess

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder):
        self.folder, self.ca, self.serial = folder, folder / "ca.crt", 0
        openssl("req", "-x509", *KEY, "-days", 30, "-subj", "/CN=soak-ca", "-addext", "basicConstraints=critical,CA:TRUE",
                "-keyout", folder / "ca.key", "-out", self.ca)
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")

    def sign(self, name):
        """NAME.crt and NAME.key, new ones in the place of those before, without a moment in which a file is missing."""
        self.serial += 1
        new = self.folder / f"new-{self.serial}"
        openssl("req", *KEY, "-subj", "/CN=penstock", "-keyout", f"{new}.key", "-out", f"{new}.csr")
        openssl("x509", "-req", "-in", f"{new}.csr", "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-set_serial", self.serial,
                "-days", 30, "-out", f"{new}.crt", "-extfile", self.folder / "names")
        for end in ("crt", "key"):
            new.with_suffix(f".{end}").rename(self.folder / f"{name}.{end}")
        new.with_suffix(".csr").unlink()

    def flags(self, name):
        return [f"--cluster_ca={self.ca}", f"--cluster_cert={self.folder / name}.crt", f"--cluster_key={self.folder / name}.key"]

    def client_flags(self, name):
        return [f"--ca={self.ca}", f"--cert={self.folder / name}.crt", f"--key={self.folder / name}.key"]
