{{- define "cenote.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cenote.selector" -}}
app.kubernetes.io/name: cenote
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cenote.labels" -}}
{{ include "cenote.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "cenote.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "cenote.name" .) }}
{{- end }}

{{- define "cenote.cacheClaim" -}}
{{ .Values.cache.existingClaim | default (printf "%s-cache" (include "cenote.name" .)) }}
{{- end }}

{{- define "cenote.hasCacheClaim" -}}
{{- if or .Values.cache.persistent .Values.cache.existingClaim }}true{{ end }}
{{- end }}

{{- /* The secret with API keys; nothing if there is none. */}}
{{- define "cenote.keySecret" -}}
{{- if .Values.apiKey.existingSecret }}{{ .Values.apiKey.existingSecret }}{{ else if .Values.apiKey.create }}{{ include "cenote.name" . }}-api-key{{ end }}
{{- end }}
