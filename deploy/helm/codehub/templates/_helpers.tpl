{{- define "codehub.name" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name }}
{{- $name := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) }}
{{- .Values.fullnameOverride | default $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "codehub.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "codehub.labels" -}}
{{ include "codehub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels of the Pod of helm test, which no Service selects. */}}
{{- define "codehub.testLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "codehub.image" -}}
{{ required "image.repository is empty: build codehub/server, push it to your registry and give its name there, such as registry.example.com/codehub/server" .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "codehub.workspaces" -}}
{{ .Values.workspaces.namespace | default (printf "%s-workspaces" .Release.Namespace) }}
{{- end }}

{{- define "codehub.host" -}}
{{ (urlParse .).host }}
{{- end }}

{{/* A variable from a Secret of the administrator, or of the chart. */}}
{{- define "codehub.fromSecret" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .from.existingSecret | default .own }}
      key: {{ if .from.existingSecret }}{{ .from.key }}{{ else }}{{ .variable }}{{ end }}
{{- end }}

{{- define "codehub.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "codehub.name" .) "default") }}
{{- end }}

{{/* What a Service of these values has in common: its type, and the fields of load balancers. */}}
{{- define "codehub.service" -}}
type: {{ .type }}
{{- with .externalTrafficPolicy }}
externalTrafficPolicy: {{ . }}
{{- end }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerIP }}
loadBalancerIP: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{ toJson . }}
{{- end }}
{{- end }}

{{/* A value as text. A number of YAML is a float, which toString writes as 1.2096e+06. */}}
{{- define "codehub.text" -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end }}

{{/* Annotations of what stays when the release is removed. */}}
{{- define "codehub.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false,Delete=false
{{- end }}

{{/* A quantity of processors of Kubernetes as a number of cores: 500m is 0.5. */}}
{{- define "codehub.cores" -}}
{{- $text := include "codehub.text" . }}
{{- if hasSuffix "m" $text }}{{ divf (trimSuffix "m" $text) 1000 }}{{ else }}{{ $text }}{{ end }}
{{- end }}

{{/* A quantity of Kubernetes in bytes. To the servers, 4G would be what Kubernetes calls 4Gi. */}}
{{- define "codehub.bytes" -}}
{{- $text := include "codehub.text" . }}
{{- $unit := regexFind "[A-Za-z]*$" $text }}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- mulf (trimSuffix $unit $text) (get $units $unit) | int64 }}
{{- end }}

{{/* The names of references to Secrets, as JSON. */}}
{{- define "codehub.secretNames" -}}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
{{- toJson $names }}
{{- end }}
