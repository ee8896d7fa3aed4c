{{- define "codehub.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "codehub.selector" -}}
app.kubernetes.io/name: codehub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "codehub.labels" -}}
{{ include "codehub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "codehub.image" -}}
{{ required "image.repository is empty: build codehub/server, push it to your registry and give its name there, such as registry.example.com/codehub/server" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
