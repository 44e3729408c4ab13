# What every shell and every Ray process of a node needs; sourced by ~/.bashrc (deploy/ray/*.yaml).
export PATH="$HOME/venv/bin:$PATH"
export HF_HOME="$HOME/models"
export RAY_USAGE_STATS_ENABLED=0
# Ray takes orders from nobody without this token: whoever can give them can run any program.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=/etc/paceline/secrets/ray-token
# export OTEL_EXPORTER_OTLP_ENDPOINT=http://collector.example.com:4317
# export HF_TOKEN="$(cat /etc/paceline/secrets/hub-token)"
