"""The tools that make images, without making one: the list of contents, the packing, and that the Dockerfiles and
scripts/image do the same. `scripts/image --check` makes them."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy/docker"
STATUS = """Package: libone
Status: install ok installed
Maintainer: One Person <one@example.com>
Architecture: amd64
Source: one (1.2)
Version: 1:1.2-3+deb12u1
Description: first
 more of it

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: penstock
Status: install ok installed
Maintainer: Penstock
Architecture: amd64
Version: 0.1.0-1
"""


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env={**os.environ, **environment})


class System(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-image-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.system = self.make("system")

    def make(self, name):
        system = self.folder / name
        files = {"var/lib/dpkg/status": STATUS, "usr/share/doc/libone/copyright": "Format: x\nLicense: BSD-3-clause\n", "usr/bin/penstock": "program",
                 "opt/penstock/packages.json": json.dumps([{"name": "nccl", "version": "2", "sha256": "0" * 64, "license": "BSD-3-Clause"}]),
                 "tmp/left": "temporary", "proc/1": "", "dev/null": ""}
        for path in sorted(files, reverse=name != "system"):
            (system / path).parent.mkdir(parents=True, exist_ok=True)
            (system / path).write_text(files[path])
            os.chmod(system / path, 0o644)
        os.chmod(system / "usr/bin/penstock", 0o755)
        os.link(system / "usr/bin/penstock", system / "usr/bin/second")
        os.symlink("/usr/share/penstock/models", system / "models")
        return system


class Contents(System):
    def list(self, **environment):
        result = run(ROOT / "scripts/sbom", self.system, "--name", "penstock", "--version", "0.1.0", **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_every_installed_package_is_named(self):
        document = self.list()
        found = {item["name"]: item for item in document["packages"]}
        self.assertEqual(set(found), {"penstock", "libone", "nccl"})
        self.assertEqual(len(document["packages"]), 4, "the image itself, and the package of the same name")
        self.assertEqual(found["libone"]["versionInfo"], "1:1.2-3+deb12u1")
        self.assertEqual(found["libone"]["externalRefs"][0]["referenceLocator"], "pkg:deb/debian/libone@1%3A1.2-3%2Bdeb12u1?arch=amd64&distro=bookworm")
        self.assertIn("BSD-3-clause", found["libone"]["licenseComments"])
        self.assertEqual(found["libone"]["supplier"], "Organization: One Person")
        self.assertEqual(found["nccl"]["checksums"], [{"algorithm": "SHA256", "checksumValue": "0" * 64}])

    def test_it_is_spdx(self):
        document = self.list()
        self.assertEqual((document["spdxVersion"], document["dataLicense"], document["SPDXID"]), ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT"))
        ids = [item["SPDXID"] for item in document["packages"]]
        self.assertEqual(len(ids), len(set(ids)))
        for item in document["packages"]:
            self.assertRegex(item["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertLessEqual({"name", "downloadLocation", "filesAnalyzed"}, set(item))
        related = {entry["relatedSpdxElement"] for entry in document["relationships"]}
        self.assertEqual(related, set(ids))
        self.assertRegex(document["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_equal_systems_give_equal_lists(self):
        self.assertEqual(self.list(SOURCE_DATE_EPOCH="1700000000"), self.list(SOURCE_DATE_EPOCH="1700000000"))
        self.assertEqual(self.list(SOURCE_DATE_EPOCH="1700000000")["creationInfo"]["created"], "2023-11-14T22:13:20Z")


class Packing(System):
    def pack(self, system, name, dockerfile="Dockerfile"):
        target = self.folder / name
        result = run(ROOT / "scripts/oci-image", system, target, "--dockerfile", DOCKER / dockerfile, "--name", "penstock", "--tag", "0.1.0",
                     SOURCE_DATE_EPOCH="1700000000")
        self.assertEqual(result.returncode, 0, result.stderr)
        return target

    def read(self, target):
        """The image's configuration, and its layer as a tar file; every digest is checked on the way."""
        with tarfile.open(target) as tar:
            blobs = {member.name: tar.extractfile(member).read() for member in tar}
        self.assertEqual(json.loads(blobs["oci-layout"]), {"imageLayoutVersion": "1.0.0"})

        def blob(descriptor):
            data = blobs["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
            self.assertEqual((len(data), "sha256:" + hashlib.sha256(data).hexdigest()), (descriptor["size"], descriptor["digest"]))
            return data

        manifest = json.loads(blob(json.loads(blobs["index.json"])["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layer = gzip.decompress(blob(manifest["layers"][0]))
        self.assertEqual(config["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(layer).hexdigest()])
        docker, = json.loads(blobs["manifest.json"])
        self.assertEqual((docker["Config"], docker["Layers"]), ("blobs/sha256/" + manifest["config"]["digest"][7:], [
            "blobs/sha256/" + manifest["layers"][0]["digest"][7:]]))
        return config, tarfile.open(fileobj=io.BytesIO(layer))

    def test_the_layer_is_the_system(self):
        _, layer = self.read(self.pack(self.system, "image.tar"))
        members = {member.name: member for member in layer}
        self.assertEqual(layer.extractfile("usr/bin/penstock").read(), b"program")
        self.assertEqual((members["usr/bin/second"].type, members["usr/bin/second"].linkname), (tarfile.LNKTYPE, "usr/bin/penstock"))
        self.assertEqual(members["models"].linkname, "/usr/share/penstock/models")
        self.assertEqual(members["usr/bin/penstock"].mode, 0o755)
        self.assertIn("tmp", members)
        self.assertNotIn("tmp/left", members)
        self.assertNotIn("dev/null", members)
        for member in members.values():
            self.assertLessEqual(member.mtime, 1700000000)
            self.assertEqual(member.uname, "")

    def test_equal_systems_give_equal_bytes(self):
        first, second = self.pack(self.system, "one.tar"), self.pack(self.make("other"), "two.tar")
        self.assertEqual(first.read_bytes(), second.read_bytes())
        (self.folder / "other/usr/bin/penstock").write_text("changed")
        self.assertNotEqual(first.read_bytes(), self.pack(self.folder / "other", "three.tar").read_bytes())

    def test_the_configuration_is_the_dockerfiles(self):
        config = self.read(self.pack(self.system, "image.tar"))[0]["config"]
        self.assertEqual((config["User"], config["Cmd"]), ("10001:10001", ["/usr/bin/penstock-router", "--help"]))
        self.assertEqual(config["Labels"]["org.opencontainers.image.title"], "penstock")
        gpu = self.read(self.pack(self.system, "gpu.tar", "Dockerfile.gpu"))[0]["config"]
        self.assertEqual(gpu["Cmd"], ["/usr/bin/penstock-decode", "--help"])
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", gpu["Env"])


class Dockerfiles(unittest.TestCase):
    def steps(self, name):
        text = (DOCKER / name).read_text()
        return [re.sub(r"--mount=\S+|\\\n", "", step).split() for step in re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.M)]

    def test_every_step_is_a_script_that_runs_without_docker(self):
        self.assertEqual(self.steps("Dockerfile"), [["scripts/setup", "--package"], ["scripts/package", "--out", "/packages"],
                                                    ["/docker/install", "/packages"]])
        self.assertEqual(self.steps("Dockerfile.gpu"), [
            ["scripts/setup", "--package"], ["scripts/setup", "--cuda"], ["scripts/gpu-libraries", "/libraries"],
            ["scripts/package", "--preset", "cuda", "--out", "/packages"], ["/docker/install", "/packages", "/libraries"]])
        for path in ("scripts/setup", "scripts/package", "scripts/gpu-libraries", "scripts/image", "scripts/image-system", "scripts/sbom",
                     "scripts/oci-image", "deploy/docker/install"):
            self.assertTrue(os.access(ROOT / path, os.X_OK), path)

    def test_the_second_stage_has_nothing_but_packages_and_runs_as_the_pods_user(self):
        for name in ("Dockerfile", "Dockerfile.gpu"):
            text = (DOCKER / name).read_text()
            stage = text.split("\nFROM ")[-1]
            self.assertTrue(stage.startswith("debian:bookworm-slim\n"))
            self.assertNotIn("COPY", stage)
            self.assertEqual(re.search(r"^USER (.*)$", text, re.M)[1], "10001:10001")
        install = (DOCKER / "install").read_text()
        self.assertIn("groupadd --gid 10001 penstock", install)
        self.assertIn("useradd --uid 10001 --gid 10001 ", install)
        self.assertEqual(re.findall(r"apt-get install (.*)", install), [
            '--yes --no-install-recommends "$packages"/penstock_*.deb', "--yes --no-install-recommends ibverbs-providers librdmacm1"])

    def test_versions_are_those_of_the_project_and_the_chart(self):
        version = re.search(r"project\(penstock VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        for name in ("Dockerfile", "Dockerfile.gpu"):
            self.assertIn(f"org.opencontainers.image.version={version} ", (DOCKER / name).read_text())
        self.assertIn(f"appVersion: {version}\n", (ROOT / "deploy/helm/penstock/Chart.yaml").read_text())

    def test_all_that_is_fetched_is_pinned_by_hash(self):
        for name in ("docker/cuda-build.txt", "docker/cuda-library.txt", "docker/cuda-run.txt", "requirements.txt"):
            lines = [line for line in (ROOT / "deploy" / name).read_text().splitlines() if line and not line.startswith("#")]
            self.assertGreater(len(lines), 0)
            for line in lines:
                self.assertRegex(line, r"^[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}$")
        self.assertIn("--require-hashes", (ROOT / "scripts/setup").read_text())
        self.assertIn("--require-hashes", (ROOT / "scripts/gpu-libraries").read_text())

    def test_the_targets_are_those_of_the_gates(self):
        architectures = re.search(r'CMAKE_CUDA_ARCHITECTURES "([^"]*)"', (ROOT / "cmake/Dependencies.cmake").read_text())[1].split(";")
        targets = json.loads(re.search(r"TARGETS = (\{.*\})", (ROOT / "scripts/cuda-gates").read_text())[1])
        native = {f"sm_{name[:-5]}": f"-arch=sm_{name[:-5]}" for name in architectures if name.endswith("-real")}
        newer = [flags for target, flags in targets.items() if target not in native]
        self.assertEqual({target: flags for target, flags in targets.items() if target in native}, native)
        self.assertEqual([name for name in architectures if name.endswith("-virtual")], ["90-virtual"], "PTX for newer GPUs")
        self.assertEqual([flags.split("=", 1)[1].split(",")[0] for flags in newer], ["arch=compute_90"], "compiled from that PTX")

    def test_the_library_kernels_are_compiled_as_for_the_gates(self):
        options = re.search(r"<COMPILE_LANGUAGE:CUDA>:([^>]*)>", (ROOT / "kernels/library.cmake").read_text())[1].split(";")
        flags = json.loads(re.search(r"LIBRARY_FLAGS = (\[.*\])", (ROOT / "scripts/cuda-gates").read_text())[1])
        self.assertEqual([name for name in options if name not in ("-O3", "--expt-relaxed-constexpr")], flags)


class Libraries(unittest.TestCase):
    def test_a_wheel_with_another_hash_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            pins = re.findall(r"^([\w-]+)==(\S+)", (DOCKER / "cuda-run.txt").read_text(), re.M)
            self.assertEqual(len(pins), 2)
            result = run(sys.executable, ROOT / "scripts/gpu-libraries", folder / "out", "--wheels", folder)
            self.assertIn("there is no wheel", result.stderr)
            for name, version in pins:
                (folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").write_bytes(b"other")
            result = run(sys.executable, ROOT / "scripts/gpu-libraries", folder / "out", "--wheels", folder)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("is not the one of deploy/docker/cuda-run.txt", result.stderr)


if __name__ == "__main__":
    unittest.main()
