"""Values of the chart as clusters have them, each of which scripts/check-deploy renders and validates. Together they set every
value of values.yaml; a new value needs a variant here."""

import render

GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
BOTH = ("prefill", "decode")
ROLES = ("router", "prefill", "decode")
SIDECAR = {"name": "sidecar", "image": "sidecar:1", "securityContext": {
    "allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}}


def roles(values, names=ROLES):
    return {name: dict(values) for name in names}


def example(name, **more):
    return {**render.values_of(name), **more}


# Everything of the section "Every pod", which each role has as well.
POD = {
    "env": [{"name": "GRPC_VERBOSITY", "value": "error"},
            {"name": "PENSTOCK_NVME_IO", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "io"}}}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"},
    "podLabels": {"team": "serving"},
    "nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
    "tolerations": [GPU_TOLERATION],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a", "b"]}]}]}}},
    "topologySpread": [{"key": "kubernetes.io/hostname"}, {"key": "topology.example.com/rack", "maxSkew": 2, "required": True}],
    "runtimeClassName": "nvidia",
    "priorityClassName": "serving",
    "schedulerName": "gangs",
    "initContainers": [{**SIDECAR, "name": "before", "command": ["true"]}],
    "extraContainers": [SIDECAR],
    "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    "podSecurityContext": {"supplementalGroups": [4000]},
    "containerSecurityContext": {"privileged": False},
}
METRICS = [{"type": "External", "external": {"metric": {"name": "waiting"}, "target": {"type": "AverageValue", "averageValue": "8192"}}}]
HTTP = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
        "hostnames": ["llm.example.com"], "requestTimeout": "30m", "annotations": {"example.com/owner": "serving"}}
GRPC = {**HTTP, "hostnames": ["grpc.llm.example.com"]}
GRPC.pop("requestTimeout")

VARIANTS = {
    "defaults": {},
    "laptop": example("laptop.yaml"),
    "cpu": example("cpu.yaml"),
    "gpu-node": example("gpu-node.yaml"),
    "gpu-4x4": example("gpu-4x4.yaml"),
    "everything of a pod, for all": POD,
    "everything of a pod, in each role": roles(POD),
    "everything of a pod, in both": {**POD, **roles({
        "env": [{"name": "OWN", "value": "1"}], "initContainers": [{**SIDECAR, "name": "own"}], "podLabels": {"team": "own"},
        "extraVolumes": [{"name": "own", "emptyDir": {}}], "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "one-nic"}]})},
    "targets": {"router": {"slo": {"ttftMs": 500, "tpotMs": 40}}},
    "openshift": {"openshift": True, "serviceAccount": {"create": True}},
    "images": {"image": {"repository": "registry.example.com/penstock", "tag": "1.2.3", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
               "imagePullSecrets": [{"name": "registry"}],
               "router": {"image": {"repository": "registry.example.com/penstock-router", "tag": "9", "pullPolicy": "Never"}},
               "prefill": {"image": {"repository": "registry.example.com/penstock-gpu", "digest": "sha256:" + "1" * 64}},
               "decode": {"image": {"tag": "decode"}}},
    "service account": {"serviceAccount": {"create": True, "name": "serving", "automountToken": True,
                                           "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}}},
    "an existing service account": {"serviceAccount": {"name": "serving"}},
    "keys": {"apiKeys": {"secret": "penstock-keys"}},
    "certificates": {"tls": {"cluster": "inside", "clusterRouter": "router-inside", "public": "outside"}},
    "https": {"tls": {"public": "outside", "http": True}},
    "keys and certificates": {"apiKeys": {"secret": "penstock-keys"}, "tls": {"cluster": "inside", "public": "outside", "http": True}},
    "gateway": {"gateway": {"http": HTTP, "grpc": GRPC}},
    "gateway with keys and certificates": {"gateway": {"http": HTTP}, "apiKeys": {"secret": "k"}, "tls": {"public": "outside", "http": True}},
    "inference pool": {"gateway": {"http": HTTP, "inferencePool": {"enabled": True}}},
    "inference pool with keys and certificates": {
        "gateway": {"inferencePool": {"enabled": True, "pickerPort": 19002, "failureMode": "FailClose", "pickerTls": "cluster",
                                      "annotations": {"example.com/owner": "serving"}}},
        "apiKeys": {"secret": "k"}, "tls": {"cluster": "inside", "public": "outside"}},
    "rdma": roles({"gpus": 1, "gpuResource": "nvidia.com/mig-3g.40gb", "gpuMemoryUtilization": 0.8, "rdma": {"rdma/hca": 1}, "wire": "ucx",
                   "wireNetworkTrusted": True, "ucx": {"TLS": "rc", "NET_DEVICES": "mlx5_0:1", "IB_GID_INDEX": 3},
                   "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}}}, BOTH),
    "eight gpus, nccl": roles({"gpus": 8, "wire": "nccl", "wireNetworkTrusted": True, "nccl": {"IB_HCA": "mlx5", "DEBUG": "INFO"},
                               "shmSize": "16Gi", "hostNetwork": True, "strategy": {"maxSurge": 1, "maxUnavailable": 0}}, BOTH),
    "host network": {**roles({"hostNetwork": True}), "router": {"hostNetwork": True, "strategy": {"maxSurge": 0, "maxUnavailable": 1}}},
    "different gpus": {"prefill": {"gpus": 4}, "decode": {"gpus": 1}},
    "nvme": roles({"nvme": {"emptyDir": {"sizeLimit": "200Gi"}}, "nvmeSize": "190GiB"}, BOTH),
    "keda": {**roles({"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 16}}, BOTH),
             "monitoring": {"keda": {"enabled": True, "prometheus": "http://prometheus.example.com"}},
             "prefill": {"autoscaling": {"enabled": True, "waitingTokens": 4096}}, "decode": {"autoscaling": {"enabled": True, "kvUsage": 0.5}}},
    "hpa": {**roles({"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 16, "metrics": METRICS}}, BOTH),
            "router": {"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 9, "cpuPercent": 50}}},
    "autoscaling": {"autoscaling": {"mode": "act", "turnRoles": True, "startUpSeconds": 300, "prefill": {"minReplicas": 2, "maxReplicas": 40},
                                    "decode": {"minReplicas": 3, "maxReplicas": 20}, "apiPorts": [16443]}},
    "autoscaling with an account": {"autoscaling": {"mode": "act"}, "serviceAccount": {"create": True, "name": "serving"}},
    "no autoscaling": {"autoscaling": {"mode": "off"}},
    "monitoring": {"monitoring": {"namespaceLabels": {"team": "observability"}, "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
                                  "rules": {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": "https://git.example.com/runbooks/"},
                                  "dashboards": {"enabled": True, "labels": {"grafana_dashboard": "yes"}}}},
    "open to everyone": {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}],
                                           "extraIngress": [{"from": [{"podSelector": {}}], "ports": [{"port": 9999, "protocol": "TCP"}]}],
                                           "extraEgress": [{"ports": [{"port": 4317, "protocol": "TCP"}]}]}},
    "kv events": {"kvEvents": {"enabled": True, "port": 15557, "encoding": "map", "subscribers": [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "llm-d"}}, "podSelector": {"matchLabels": {"app": "epp"}}}]}},
    "kv events without policies": {"kvEvents": {"enabled": True}, "networkPolicy": {"enabled": False}, "model": {"name": "served"}},
    "without policies": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
    "a load balancer with both IP families": {"router": {"service": {
        "type": "LoadBalancer", "port": 443, "httpPort": 80, "annotations": {"lb": "internal"}, "ipFamilyPolicy": "PreferDualStack"}}},
    "slow to start and to drain": {**roles({
        "preStopSeconds": 15, "drainSeconds": 600, "terminationGracePeriodSeconds": 700,
        "probes": {"startup": {"budgetSeconds": 3601, "periodSeconds": 10, "timeoutSeconds": 9},
                   "liveness": {"periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10},
                   "readiness": {"periodSeconds": 3, "timeoutSeconds": 1, "failureThreshold": 5}}}),
        "podDisruptionBudget": {"maxUnavailable": "25%"}},
    "a model by URI": {"model": {"path": "/models/tiny", "name": "tiny", "download": {
        "uri": "https://models.example.com/tiny", "files": ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                                            "special_tokens_map.json", "model.safetensors"]}},
        "tools": {"image": {"repository": "registry.example.com/python", "tag": "3", "digest": "sha256:" + "2" * 64, "pullPolicy": "Always"},
                  "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}},
    "a model by a job, from a mirror": {"model": {"path": "/srv/llama", "mountPath": "/srv", "volume": {"persistentVolumeClaim": {"claimName": "models"}},
                                                  "download": {"uri": "hf://org/llama@main", "how": "job", "endpoint": "https://hub.example.com",
                                                               "tokenSecret": {"name": "hf", "key": "secret"}}}, "openshift": True},
    "sizes": {"blockTokens": 32, "logLevel": "debug", "logFormat": "text",
              "router": {"replicas": 5, "maxRequests": 10, "metricsPort": 19090, "extraArgs": ["--ttft_target_ms=1000"],
                         "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}},
              **roles({"replicas": 7, "kvMemory": "3GiB", "dramMemory": "0B", "chunkTokens": 64, "maxBatch": 8, "maxWaiting": 9, "stallMs": 60000,
                       "wire": "tcp", "port": 18091, "metricsPort": 19091, "extraArgs": ["--kv_format=f8"]}, BOTH)},
    "deprecated names": {**roles({"ucxTls": "rc", "hugepages2Mi": "2Gi"}, BOTH), "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
    "an upgrade": {"upgrade": {"ordered": True, "timeoutSeconds": 900}},
    "an upgrade without order": {"upgrade": {"ordered": False}},
}
# Rendered as `helm upgrade` does; the others as an install.
UPGRADES = {"an upgrade", "an upgrade without order"}

# Values that are refused, with what the message names.
REFUSED = {
    "a misspelt value": ({"router": {"replica": 3}}, "replica"),
    "a misspelt value of every pod": ({"runtimeClass": "nvidia"}, "runtimeClass"),
    "a misspelt probe": ({"prefill": {"probes": {"startup": {"budget": 3}}}}, "budget"),
    "block tokens": ({"blockTokens": 17}, "blockTokens"),
    "a size without its unit": ({"prefill": {"kvMemory": "1"}}, "kvMemory"),
    "a number as text": ({"decode": {"replicas": "two"}}, "replicas"),
    "three gpus": ({"decode": {"gpus": 3}}, "gpus"),
    "a digest": ({"image": {"digest": "latest"}}, "digest"),
    "a port": ({"prefill": {"port": 70000}}, "port"),
    "a variable's name": ({"env": [{"name": "1=2", "value": "x"}]}, "env"),
    "a variable's value that is a number": ({"env": [{"name": "X", "value": 3}]}, "env"),
    "lower-case ucx": ({"prefill": {"ucx": {"tls": "rc"}}}, "tls"),
    "a model's uri": ({"model": {"download": {"uri": "meta-llama/Llama"}}}, "uri"),
    "a model outside its volume": ({"model": {"path": "/data/x", "download": {"uri": "hf://a/b"}}}, "model.path"),
    "a job without a claim": ({"model": {"path": "/models/x", "download": {"uri": "hf://a/b", "how": "job"}}}, "claimName"),
    "a download into a read-only claim": ({"model": {"path": "/models/x", "download": {"uri": "hf://a/b"}, "volume": {
        "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}}}, "readOnly"),
    "autoscaling by nothing": ({"prefill": {"autoscaling": {"enabled": True}}}, "prefill.autoscaling.enabled"),
    "two that scale the same": ({"autoscaling": {"mode": "act"}, "monitoring": {"keda": {"enabled": True}},
                                 "decode": {"autoscaling": {"enabled": True}}}, "decode.autoscaling.enabled"),
    "roles that nobody changes": ({"autoscaling": {"turnRoles": True}}, "autoscaling.turnRoles"),
    "a minimum above the limit": ({"autoscaling": {"prefill": {"minReplicas": 9}}}, "autoscaling.prefill.minReplicas"),
    "another mode of autoscaling": ({"autoscaling": {"mode": "auto"}}, "mode"),
    "ucx in an untrusted network": ({"decode": {"wire": "ucx"}}, "decode.wireNetworkTrusted"),
    "nccl without gpus": ({"decode": {"wire": "nccl", "wireNetworkTrusted": True}}, "decode.gpus"),
    "gpus for one role": ({"prefill": {"gpus": 1}}, "decode.gpus"),
    "one port twice on a node": (roles({"hostNetwork": True, "port": 8091}, BOTH), "port"),
    "routes that collide": ({"gateway": {"http": HTTP, "grpc": {**GRPC, "hostnames": HTTP["hostnames"]}}}, "hostnames"),
    "kv events for nobody": ({"kvEvents": {"enabled": True}}, "kvEvents.subscribers"),
    "kv events twice on a node": ({**roles({"hostNetwork": True}, BOTH), "kvEvents": {"enabled": True, "subscribers": [{"podSelector": {}}]}},
                                  "hostNetwork"),
    "another encoding of kv events": ({"kvEvents": {"encoding": "json"}}, "encoding"),
    "a picker without its certificate": ({"gateway": {"inferencePool": {"enabled": True, "pickerTls": "cluster"}}}, "tls.cluster"),
    "a picker on another port": ({"gateway": {"inferencePool": {"enabled": True, "pickerPort": 8000}}}, "pickerPort"),
    "a route to no gateway": ({"gateway": {"http": {"enabled": True}}}, "parentRefs"),
    "a kill before the drain ends": ({"router": {"drainSeconds": 60, "terminationGracePeriodSeconds": 60}}, "terminationGracePeriodSeconds"),
}
