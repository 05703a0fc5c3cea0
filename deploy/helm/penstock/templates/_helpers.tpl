{{- define "penstock.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "penstock.image" -}}
{{- if .Values.image.digest -}}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}
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

{{/* Labels by which Gateway API schedulers select pods and read metrics. */}}
{{- define "penstock.workerLabels" -}}
llm-d.ai/role: {{ .role }}
llm-d.ai/inference-serving: "true"
llm-d.ai/engine-type: vllm
{{- end }}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {{ toJson .Values.seccompProfile }}
{{- end }}

{{- define "penstock.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
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

{{/* Kubernetes' gRPC probe cannot present a certificate, so `penstock health` probes PENSTOCK_ENDPOINT. */}}
{{- define "penstock.tlsProbes" -}}
startupProbe:
  exec: {command: [/usr/bin/penstock, health, --service, live]}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 360
livenessProbe:
  exec: {command: [/usr/bin/penstock, health, --service, live]}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  exec: {command: [/usr/bin/penstock, health]}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{/* Probes of a router whose gRPC port uses TLS: the same checks over HTTP. */}}
{{- define "penstock.httpProbes" -}}
startupProbe:
  httpGet: {path: /health, port: http{{ if .Values.tls.http }}, scheme: HTTPS{{ end }}}
  periodSeconds: 5
  failureThreshold: 360
livenessProbe:
  httpGet: {path: /health, port: http{{ if .Values.tls.http }}, scheme: HTTPS{{ end }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /ready, port: http{{ if .Values.tls.http }}, scheme: HTTPS{{ end }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Called with the container's gRPC port. Service "" fails while draining, "live" only when the engine is stalled. */}}
{{- define "penstock.probes" -}}
startupProbe:
  grpc: {port: {{ . }}, service: live}
  periodSeconds: 5
  failureThreshold: 360
livenessProbe:
  grpc: {port: {{ . }}, service: live}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  grpc: {port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "penstock.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
{{- end }}
