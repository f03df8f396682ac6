{{- define "fencepost.labels" -}}
app.kubernetes.io/name: fencepost
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fencepost.fullname" -}}
{{- if contains "fencepost" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-fencepost{{ end }}
{{- end }}

{{- /* What the pods of both kinds of workload have in common: all of template. */ -}}
{{- define "fencepost.template" -}}
{{- if and (not .Values.insecureNoAuth) (not .Values.keys.secret) }}
{{- fail "without keys whoever reaches the gateway may take and break all locks: name their Secret in keys.secret or, for a trial, set insecureNoAuth=true" }}
{{- end }}
{{- $scheme := "" -}}
{{- if .Values.tls.secret }}{{ $scheme = ", scheme: HTTPS" }}{{ end -}}
{{- $host := include "fencepost.fullname" . }}
{{- $hosts := list $host (printf "%s.%s" $host .Release.Namespace) (printf "%s.%s.svc" $host .Release.Namespace) (printf "%s.%s.svc.cluster.local" $host .Release.Namespace) -}}
metadata:
  labels: {{- include "fencepost.labels" . | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  # preStop, FENCEPOST_DRAIN_TIMEOUT, 15 s for take-backs that are still open, and 30 s for the last snapshot of a million locks.
  terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.drainTimeoutSeconds 60 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: gateway
      image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}} # by which Prometheus asks
        - {name: FENCEPOST_LISTEN_ADDR, value: ":8080"}
        - {name: FENCEPOST_ALLOWED_HOSTS, value: {{ printf "%s,$(POD_IP)" (join "," (concat $hosts .Values.allowedHosts)) | quote }}}
        {{- if .Values.insecureNoAuth }}
        - {name: FENCEPOST_INSECURE_NO_AUTH, value: "true"} # a trial: whoever reaches it may take and break all locks
        {{- else }}
        - {name: FENCEPOST_KEYS_FILE, value: /run/secrets/fencepost-keys/keys}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: FENCEPOST_TLS_CERT_FILE, value: /run/secrets/fencepost-tls/tls.crt}
        - {name: FENCEPOST_TLS_KEY_FILE, value: /run/secrets/fencepost-tls/tls.key}
        {{- if .Values.tls.clientCA }}
        - {name: FENCEPOST_TLS_CLIENT_CA_FILE, value: /run/secrets/fencepost-tls/ca.crt}
        {{- end }}
        {{- end }}
        - {name: FENCEPOST_DRAIN_TIMEOUT, value: {{ printf "%ds" (int .Values.drainTimeoutSeconds) | quote }}}
        {{- if eq .Values.store "raft" }}
        {{- $nodes := list }}
        {{- range $i := until (int .Values.raft.replicas) }}{{ $nodes = append $nodes (printf "%s-%d.%s-nodes:7000" $host $i $host) }}{{ end }}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: FENCEPOST_STORE, value: {{ printf "raft://%s" (join "," $nodes) | quote }}}
        - {name: FENCEPOST_CLUSTER_ADDR, value: {{ printf "$(POD_NAME).%s-nodes:7000" $host | quote }}}
        - {name: FENCEPOST_CLUSTER_LISTEN_ADDR, value: ":7000"}
        - {name: FENCEPOST_CLUSTER_SECRET_FILE, value: /run/secrets/fencepost-cluster/secret}
        {{- end }}
        {{- if eq .Values.store "redis" }}
        - {name: FENCEPOST_STORE_FILE, value: /run/secrets/fencepost/url}
        {{- with .Values.redis.sentinelUsername }}
        - {name: FENCEPOST_SENTINEL_USERNAME, value: {{ . | quote }}}
        - {name: FENCEPOST_SENTINEL_PASSWORD_FILE, value: /run/secrets/fencepost/sentinel-password}
        {{- end }}
        {{- if .Values.redis.ca }}
        - {name: FENCEPOST_REDIS_TLS_CA_FILE, value: /run/secrets/fencepost/ca.crt}
        {{- end }}
        {{- if .Values.redis.certificate }}
        - {name: FENCEPOST_REDIS_TLS_CERT_FILE, value: /run/secrets/fencepost/tls.crt}
        - {name: FENCEPOST_REDIS_TLS_KEY_FILE, value: /run/secrets/fencepost/tls.key}
        {{- end }}
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - {name: FENCEPOST_{{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8080}
        {{- if eq .Values.store "raft" }}
        - {name: cluster, containerPort: 7000}
        {{- end }}
      # A restart does not help against a store that is out of reach: /livez never asks it.
      livenessProbe: {httpGet: {path: /livez, port: http{{ $scheme }}}, periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: http{{ $scheme }}}, periodSeconds: 2, timeoutSeconds: 3, failureThreshold: 2}
      # A store of its own checks all of its files before it serves.
      startupProbe: {httpGet: {path: /livez, port: http{{ $scheme }}}, periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 300}
      lifecycle: {preStop: {sleep: {seconds: {{ .Values.preStopSeconds }}}}}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- if eq .Values.store "redis" }}
        - {name: store, mountPath: /run/secrets/fencepost, readOnly: true}
        {{- else }}
        - {name: locks, mountPath: /var/lib/fencepost}
        {{- end }}
        {{- if eq .Values.store "raft" }}
        - {name: cluster, mountPath: /run/secrets/fencepost-cluster, readOnly: true}
        {{- end }}
        {{- if not .Values.insecureNoAuth }}
        - {name: keys, mountPath: /run/secrets/fencepost-keys, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: tls, mountPath: /run/secrets/fencepost-tls, readOnly: true}
        {{- end }}
  {{- if ne .Values.store "embedded" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "fencepost.labels" . | nindent 10 }}
  {{- end }}
  {{- if or (ne .Values.store "embedded") (not .Values.insecureNoAuth) .Values.tls.secret }}
  volumes:
    {{- if eq .Values.store "raft" }}
    - {name: cluster, secret: {secretName: {{ .Values.raft.secret }}, defaultMode: 0440}}
    {{- end }}
    {{- if eq .Values.store "redis" }}
    - {name: store, secret: {secretName: {{ .Values.redis.secret }}, defaultMode: 0440}}
    {{- end }}
    {{- if not .Values.insecureNoAuth }}
    - {name: keys, secret: {secretName: {{ .Values.keys.secret }}, defaultMode: 0440}}
    {{- end }}
    {{- with .Values.tls.secret }}
    - {name: tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
