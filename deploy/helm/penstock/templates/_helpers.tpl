{{- define "penstock.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{/* Called with an image of the values. An empty tag is the chart's appVersion. */}}
{{- define "penstock.imageOf" -}}
{{- if .image.digest -}}{{ .image.repository }}@{{ .image.digest }}
{{- else -}}{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}{{- end -}}
{{- end }}

{{/* Called with (dict "root" $ "role" "prefill"). */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: penstock
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "penstock.serviceAccount" -}}
{{- with .Values.serviceAccount }}{{ .name | default (ternary (include "penstock.name" $) "" .create) }}{{- end -}}
{{- end }}

{{/* The service account with which routers change the number of workers. */}}
{{- define "penstock.routerAccount" -}}
{{- include "penstock.serviceAccount" . | default (printf "%s-router" (include "penstock.name" .)) }}
{{- end }}

{{- define "penstock.autoscalingFlags" -}}
{{- $name := include "penstock.name" . }}
{{- with .Values.autoscaling }}
- --autoscale={{ .mode }}
{{- if ne .mode "off" }}
- --worker_start_up_s={{ .startUpSeconds }}
- --prefill_replicas_min={{ .prefill.minReplicas }}
- --prefill_replicas_max={{ .prefill.maxReplicas }}
- --decode_replicas_min={{ .decode.minReplicas }}
- --decode_replicas_max={{ .decode.maxReplicas }}
{{- end }}
{{- if eq .mode "act" }}
- --kubernetes_api=https://[$(KUBERNETES_SERVICE_HOST)]:$(KUBERNETES_SERVICE_PORT)
- --prefill_deployment={{ $name }}-prefill
- --decode_deployment={{ $name }}-decode
- --autoscale_lease={{ $name }}-autoscaling
- --router_id=$(POD_NAME)
{{- if .turnRoles }}
- --role_advice=act
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings of a role's pods that stand both at the top of the values and in each role, as JSON: lists are
     joined, maps are merged with the role's entries winning, and of the others the role's replaces the top's. */}}
{{- define "penstock.settings" -}}
{{- $all := .root.Values }}
{{- $own := index .root.Values .role }}
{{- $settings := dict "image" (mergeOverwrite (dict) (deepCopy $all.image) (deepCopy $own.image)) }}
{{- /* A role's tag replaces a digest for all, not the other way round. */}}
{{- if and $own.image.tag (not $own.image.digest) }}{{ $_ := set $settings.image "digest" "" }}{{ end }}
{{- range list "env" "envFrom" "tolerations" "initContainers" "extraContainers" "extraVolumes" "extraVolumeMounts" "resourceClaims" }}
{{- $_ := set $settings . (concat (index $all .) (index $own .)) }}
{{- end }}
{{- range list "podAnnotations" "podLabels" "nodeSelector" "podSecurityContext" "containerSecurityContext" }}
{{- $_ := set $settings . (mergeOverwrite (dict) (deepCopy (index $all .)) (deepCopy (index $own .))) }}
{{- end }}
{{- range list "affinity" "runtimeClassName" "priorityClassName" "schedulerName" "topologySpread" }}
{{- $_ := set $settings . (index $own . | default (index $all .)) }}
{{- end }}
{{- if $all.seccompProfile }}{{ $_ := set $settings.podSecurityContext "seccompProfile" $all.seccompProfile }}{{ end }}
{{- if $all.openshift }}
{{- $_ := set $settings "podSecurityContext" (omit $settings.podSecurityContext "runAsUser" "runAsGroup" "fsGroup") }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{/* Called with (dict "root" $ "role" ... "settings" ...): the metadata of a pod. Own labels win: selectors need them. */}}
{{- define "penstock.podMetadata" -}}
{{- $labels := include "penstock.labels" . | fromYaml }}
labels: {{- mergeOverwrite (dict) .settings.podLabels $labels | toYaml | nindent 2 }}
{{- with .settings.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The settings of a pod around its containers. */}}
{{- define "penstock.podHead" -}}
{{- $own := index .root.Values .role }}
{{- $acts := and (eq .role "router") (eq .root.Values.autoscaling.mode "act") }}
automountServiceAccountToken: {{ or $acts .root.Values.serviceAccount.automountToken }}
{{- with ternary (include "penstock.routerAccount" .root) (include "penstock.serviceAccount" .root) $acts }}
serviceAccountName: {{ . }}
{{- end }}
enableServiceLinks: false  # service links would set PENSTOCK_* variables, which are configuration
{{- $least := add $own.preStopSeconds $own.drainSeconds }}
{{- if and $own.terminationGracePeriodSeconds (le (int $own.terminationGracePeriodSeconds) (int $least)) }}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d; it must be above preStopSeconds + drainSeconds = %d, or 0 for that and 15 s more" .role (int $own.terminationGracePeriodSeconds) (int $least)) }}
{{- end }}
terminationGracePeriodSeconds: {{ $own.terminationGracePeriodSeconds | default (add $least 15) }}
securityContext: {{- toYaml .settings.podSecurityContext | nindent 2 }}
{{- if $own.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: {{ .maxSkew | default 1 }}
    topologyKey: {{ .key }}
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (.required | default false) }}
    labelSelector: {matchLabels: {{ include "penstock.selector" $ | fromYaml | toJson }}}
    matchLabelKeys: [pod-template-hash]  # old and new pods of an upgrade are spread apart from each other
  {{- end }}
{{- end }}
{{- with .settings.resourceClaims }}
resourceClaims: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $download := and .root.Values.model.download.uri (eq .root.Values.model.download.how "init") }}
{{- if or $download .settings.initContainers }}
initContainers:
  {{- if $download }}
  {{- /* Only in a volume of its own may a router leave out the weights. */}}
  {{- $volume := .root.Values.model.volume }}
  {{- $alone := or (not $volume) (hasKey $volume "emptyDir") (hasKey $volume "ephemeral") }}
  - {{- include "penstock.download" (dict "root" .root "tokenizer" (and (eq .role "router") $alone)) | nindent 4 }}
  {{- end }}
  {{- with .settings.initContainers }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}

{{/* The volumes that every role may have; `tmp` is the only place for files of a read-only container. */}}
{{- define "penstock.volumes" -}}
{{- $values := .root.Values }}
{{- if include "penstock.hasModelVolume" .root }}
- {{ merge (dict "name" "model") ($values.model.volume | default (dict "emptyDir" dict)) | toJson }}
{{- end }}
{{- if and $values.model.download.uri (eq $values.model.download.how "init") }}
- {name: download, configMap: {name: {{ include "penstock.name" .root }}-download}}
{{- end }}
{{- with .settings.extraVolumes }}
{{ toYaml . }}
{{- end }}
- {name: tmp, emptyDir: {}}
{{- end }}

{{- define "penstock.volumeMounts" -}}
{{- if include "penstock.hasModelVolume" .root }}
- {name: model, mountPath: {{ .root.Values.model.mountPath }}, readOnly: true}
{{- end }}
{{- with .settings.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "penstock.hasModelVolume" -}}
{{- if or .Values.model.volume .Values.model.download.uri }}yes{{ end }}
{{- end }}

{{- define "penstock.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}

{{/* An address to listen on. The brackets are right for IPv4 and IPv6. */}}
{{- define "penstock.address" -}}[$(POD_IP)]:{{ . }}{{- end }}

{{/* The Secret with the certificate of the endpoint picker's port; empty: the port is plain. */}}
{{- define "penstock.pickerTls" -}}
{{- if eq .Values.gateway.inferencePool.pickerTls "cluster" }}{{ .Values.tls.cluster }}{{ else }}{{ .Values.tls.public }}{{ end -}}
{{- end }}

{{/* The cluster's certificates, for the process and for `penstock` in the same container. */}}
{{- define "penstock.clusterFlags" -}}
{{- if .Values.tls.cluster }}
- --cluster_cert=/etc/penstock/cluster/tls.crt
- --cluster_key=/etc/penstock/cluster/tls.key
- --cluster_ca=/etc/penstock/cluster/ca.crt
{{- end }}
{{- end }}

{{- define "penstock.tlsEnv" -}}
- {name: PENSTOCK_CERT, value: /etc/penstock/cluster/tls.crt}
- {name: PENSTOCK_KEY, value: /etc/penstock/cluster/tls.key}
- {name: PENSTOCK_CA, value: /etc/penstock/cluster/ca.crt}
{{- end }}

{{/* Called with (dict "probes" ... "live" CHECK "ready" CHECK "slow" BOOL). A check that starts a program asks less often. */}}
{{- define "penstock.probes" -}}
{{- $startup := .probes.startup }}
startupProbe:
  {{- toYaml .live | nindent 2 }}
  periodSeconds: {{ $startup.periodSeconds }}
  timeoutSeconds: {{ $startup.timeoutSeconds }}
  failureThreshold: {{ div (add $startup.budgetSeconds (sub $startup.periodSeconds 1)) $startup.periodSeconds }}
livenessProbe:
  {{- toYaml .live | nindent 2 }}
  {{- toYaml .probes.liveness | nindent 2 }}
readinessProbe:
  {{- toYaml .ready | nindent 2 }}
  {{- toYaml .probes.readiness | nindent 2 }}
{{- end }}

{{/* A Deployment must not be called failed while its pods may still fetch and load the model. Called with (dict "root" $ "own" ...). */}}
{{- define "penstock.progressDeadline" -}}
{{- $download := and .root.Values.model.download.uri (eq .root.Values.model.download.how "init") }}
{{- add .own.probes.startup.budgetSeconds 600 (ternary 3600 0 (not (not $download))) }}
{{- end }}

{{/* The container that puts a model into model.path. Called with (dict "root" $ "tokenizer" BOOL). */}}
{{- define "penstock.download" -}}
{{- $model := .root.Values.model }}
name: download
image: {{ include "penstock.imageOf" (dict "root" .root "image" .root.Values.tools.image) }}
imagePullPolicy: {{ .root.Values.tools.image.pullPolicy }}
command: [python3, /download/download.py]
args:
  - --uri={{ $model.download.uri }}
  - --to={{ $model.path }}
  {{- if eq $model.download.how "job" }}
  - --owner=job  # a new pod of the Job goes on where the last one was
  {{- end }}
  {{- with $model.download.endpoint }}
  - --endpoint={{ . }}
  {{- end }}
  {{- range $model.download.files }}
  - --file={{ . }}
  {{- end }}
  {{- if .tokenizer }}
  - --without-weights  # a router reads the tokenizer, the chat template and the limits
  {{- end }}
{{- with $model.download.tokenSecret }}
{{- if .name }}
env:
  - name: MODEL_TOKEN
    valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
resources: {{- toYaml .root.Values.tools.resources | nindent 2 }}
securityContext: {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
volumeMounts:
  - {name: model, mountPath: {{ $model.mountPath }}}
  - {name: download, mountPath: /download, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* Checks that no schema can express. Each message names the value and the next step. */}}
{{- define "penstock.check" -}}
{{- $model := .Values.model }}
{{- if $model.download.uri }}
{{- if not (hasPrefix (printf "%s/" $model.mountPath) $model.path) }}
{{- fail (printf "model.path is %q; with model.download.uri it must be a directory below model.mountPath (%s)" $model.path $model.mountPath) }}
{{- end }}
{{- $claim := dig "persistentVolumeClaim" dict $model.volume }}
{{- if $claim.readOnly }}
{{- fail "model.volume.persistentVolumeClaim.readOnly is true; model.download.uri needs a volume that can be written" }}
{{- end }}
{{- if and (eq $model.download.how "job") (not $claim.claimName) }}
{{- fail "model.download.how is job; it needs model.volume.persistentVolumeClaim.claimName, a volume that every pod can mount" }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.turnRoles (ne .Values.autoscaling.mode "act") }}
{{- fail (printf "autoscaling.turnRoles is true and autoscaling.mode is %s; only `act` changes roles" .Values.autoscaling.mode) }}
{{- end }}
{{- range $role := list "prefill" "decode" }}
{{- $own := index $.Values $role }}
{{- $bounds := index $.Values.autoscaling $role }}
{{- if gt (int $bounds.minReplicas) (int $bounds.maxReplicas) }}
{{- fail (printf "autoscaling.%s.minReplicas is %d, above maxReplicas, which is %d" $role (int $bounds.minReplicas) (int $bounds.maxReplicas)) }}
{{- end }}
{{- if and $own.autoscaling.enabled (eq $.Values.autoscaling.mode "act") }}
{{- fail (printf "%s.autoscaling.enabled is true and autoscaling.mode is act: two would change the same replicas; set the mode to propose, or disable the other" $role) }}
{{- end }}
{{- if and $own.autoscaling.enabled (not $.Values.monitoring.keda.enabled) (not $own.autoscaling.metrics) }}
{{- fail (printf "%s.autoscaling.enabled is true and nothing would scale; set monitoring.keda.enabled, or metrics of a HorizontalPodAutoscaler in %s.autoscaling.metrics" $role $role) }}
{{- end }}
{{- if and (has $own.wire (list "ucx" "nccl")) (not $own.wireNetworkTrusted) }}
{{- fail (printf "%s.wire is %s; it needs %s.wireNetworkTrusted, because every host that reaches its ports can write the worker's memory" $role $own.wire $role) }}
{{- end }}
{{- if and (eq $own.wire "nccl") (not $own.gpus) }}
{{- fail (printf "%s.wire is nccl; it needs GPUs: set %s.gpus" $role $role) }}
{{- end }}
{{- end }}
{{- if ne (eq (int .Values.prefill.gpus) 0) (eq (int .Values.decode.gpus) 0) }}
{{- fail (printf "prefill.gpus is %d and decode.gpus is %d; all workers compute on CPUs or all on GPUs, because they share KV" (int .Values.prefill.gpus) (int .Values.decode.gpus)) }}
{{- end }}
{{- if and .Values.prefill.hostNetwork .Values.decode.hostNetwork }}
{{- $ports := list .Values.prefill.port .Values.prefill.metricsPort .Values.decode.port .Values.decode.metricsPort }}
{{- if ne (len $ports) (len (uniq $ports)) }}
{{- fail "prefill and decode have hostNetwork and a port in common; give each its own port and metricsPort" }}
{{- end }}
{{- end }}
{{- if and .Values.kvEvents.enabled .Values.prefill.hostNetwork .Values.decode.hostNetwork }}
{{- fail "kvEvents.enabled is true, and prefill and decode have hostNetwork: two workers of a node would need the same port; set hostNetwork to false for one of them" }}
{{- end }}
{{- if and .Values.kvEvents.enabled .Values.networkPolicy.enabled (not .Values.kvEvents.subscribers) }}
{{- fail "kvEvents.enabled is true and the NetworkPolicy admits no subscriber; set kvEvents.subscribers" }}
{{- end }}
{{- if and .Values.gateway.http.enabled .Values.gateway.grpc.enabled }}
{{- if and (eq (toJson .Values.gateway.http.parentRefs) (toJson .Values.gateway.grpc.parentRefs)) (eq (toJson .Values.gateway.http.hostnames) (toJson .Values.gateway.grpc.hostnames)) }}
{{- fail "gateway.http and gateway.grpc have the same parentRefs and hostnames; the Gateway API refuses that: give each its own hostnames, or its own listener by sectionName" }}
{{- end }}
{{- end }}
{{- if and .Values.gateway.inferencePool.enabled (eq .Values.gateway.inferencePool.pickerTls "cluster") (not .Values.tls.cluster) }}
{{- fail "gateway.inferencePool.pickerTls is cluster; it needs tls.cluster, or set it to public" }}
{{- end }}
{{- if and .Values.gateway.inferencePool.enabled (has (int .Values.gateway.inferencePool.pickerPort) (list 8000 8090 8093 (int .Values.router.metricsPort))) }}
{{- fail (printf "gateway.inferencePool.pickerPort is %d, which is another port of the router; choose a free one, e.g. 9002" (int .Values.gateway.inferencePool.pickerPort)) }}
{{- end }}
{{- range $route := list "http" "grpc" }}
{{- if and (index $.Values.gateway $route).enabled (not (index $.Values.gateway $route).parentRefs) }}
{{- fail (printf "gateway.%s.parentRefs is empty; name the Gateway, e.g. [{name: public, namespace: gateways}]" $route) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The peers that may call the routers, as a JSON list; an empty list is everyone. API keys are made for callers that nobody
     knows. Without them only pods of this namespace call, and those of the namespaces of the Gateways that routes name. */}}
{{- define "penstock.clients" -}}
{{- $peers := .Values.networkPolicy.clients }}
{{- if and (not $peers) (not .Values.apiKeys.secret) }}
{{- $peers = list (dict "podSelector" dict) }}
{{- $namespaces := list }}
{{- range $route := list .Values.gateway.http .Values.gateway.grpc }}
{{- if $route.enabled }}{{ range $route.parentRefs }}{{ with .namespace }}{{ $namespaces = append $namespaces . }}{{ end }}{{ end }}{{ end }}
{{- end }}
{{- range uniq $namespaces }}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) }}
{{- end }}
{{- end }}
{{- toJson $peers }}
{{- end }}

{{/* The settings of a Job's pod. */}}
{{- define "penstock.toolPod" -}}
restartPolicy: Never
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $security := .Values.podSecurityContext }}
{{- if .Values.seccompProfile }}{{ $security = merge (dict "seccompProfile" .Values.seccompProfile) $security }}{{ end }}
{{- if .Values.openshift }}{{ $security = omit $security "runAsUser" "runAsGroup" "fsGroup" }}{{ end }}
securityContext: {{- toYaml $security | nindent 2 }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
