#!/usr/bin/env python3
"""Writes deploy/kustomize and the chart's copies of rules and dashboards from their sources: the
Helm chart, deploy/prometheus and deploy/grafana. Needs helm-python-sdk (deploy/requirements.txt)."""

import pathlib
import re
import sys

import helm_python
import yaml

DEPLOY = pathlib.Path(__file__).parent
CHART = DEPLOY / "helm" / "penstock"
# Folder of deploy/kustomize, and the chart's values it is made with.
VARIANTS = {"base": None, "laptop": "laptop.yaml", "gpu": "gpu-4x4.yaml"}


def values_of(name):
    return yaml.safe_load((CHART / "values" / name).read_text()) if name else {}


def render(values, upgrade=False):
    """The objects that the chart makes on an install or an upgrade, in a fixed order."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="penstock", namespace="penstock", is_install=not upgrade, is_upgrade=upgrade)
    objects = []
    for name in sorted(files):
        if name.endswith(".yaml"):
            objects += [item for item in yaml.safe_load_all(files[name]) if item]
    return objects


def file_of(item):
    return f"{item['kind'].lower()}-{item['metadata']['name']}.yaml"


def kustomize(values):
    """Name to text of every file of one folder."""
    objects = render(values)
    for item in objects:
        labels = item["metadata"].get("labels", {})
        labels.pop("app.kubernetes.io/managed-by", None)
        template = item.get("spec", {}).get("template", {})
        template.get("metadata", {}).get("labels", {}).pop("app.kubernetes.io/managed-by", None)
    files = {file_of(item): yaml.safe_dump(item, sort_keys=False, width=120) for item in objects}
    index = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
             "namespace": "penstock", "resources": sorted(files),
             "images": [{"name": "penstock", "newTag": "0.1.0"}]}
    files["kustomization.yaml"] = ("# Made from the Helm chart by deploy/render.py; put your changes into an overlay.\n" +
                                   yaml.safe_dump(index, sort_keys=False))
    return files


def of_one_release(rules):
    """The rules with @release@ among the labels of every selector, where the chart puts its release: otherwise each release in a
    cluster would alert about all others."""
    def selector(match):
        labels = match["labels"]
        return f"{match['name']}{{{labels + ',' if labels else ''}@release@}}"
    return re.sub(r"\b(?P<name>(?:penstock|process)_\w+|up(?=\{))(?:\{(?P<labels>[^{}]*)\})?", selector, rules)


def copies():
    """Files of other folders that the chart contains: path to text."""
    texts = {source.name: source.read_text() for source in sorted((DEPLOY / "grafana").glob("*.json"))}
    texts["rules.yaml"] = of_one_release((DEPLOY / "prometheus" / "rules.yaml").read_text())
    return {CHART / "files" / name: text for name, text in texts.items()}


def expected():
    """Path to text of everything this script writes."""
    wanted = copies()
    for name, values in VARIANTS.items():
        for file, text in kustomize(values_of(values)).items():
            wanted[DEPLOY / "kustomize" / name / file] = text
    return wanted


def write(files):
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main():
    write(copies())  # first: the chart is rendered with them
    write(expected())
    return 0


if __name__ == "__main__":
    sys.exit(main())
