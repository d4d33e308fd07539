"""Invented texts with a secret of each known form."""

LETTERS = "aB3dE6gH9j" * 8
HEX = "0a1b2c3d4e" * 8

KNOWN = [
    f"hf_{LETTERS[:34]}",
    f"sk-proj-{LETTERS[:48]}",
    f"sk-ant-api03-{LETTERS[:48]}",
    f"ghp_{LETTERS[:36]}",
    f"github_pat_{LETTERS[:60]}",
    f"glpat-{LETTERS[:20]}",
    "AKIA" + "ABCDEFGH23456789",
    f"xoxb-1234567890-{LETTERS[:24]}",
    f"AIza{LETTERS[:35]}",
    f"ya29.{LETTERS[:40]}",
    f"nvapi-{LETTERS[:60]}",
    f"wandb login {HEX[:40]}",
    f"WANDB_API_KEY={HEX[:40]}",
    f"wandb_v1_{LETTERS[:60]}",
    f"eyJ{LETTERS[:20]}.eyJ{LETTERS[:30]}.{LETTERS[:40]}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{LETTERS}\n-----END OPENSSH PRIVATE KEY-----",
    "https://me:hunter2@example.org/path",
    "postgresql://me:hunter2@db:5432/runs",
    f"https://{LETTERS[:36]}@github.com/me/code",
    f"curl -H 'Authorization: Bearer {LETTERS[:30]}' https://example.org",
    f"https://example.org/a.bin?X-Amz-Signature={HEX[:64]}",
    "https://me:hunter2/x9@example.org",
    "curl -u me:hunter2 https://example.org",
    "curl -sSLume:hunter2 https://example.org",
    "curl --proxy-user 'me:hunter2' https://example.org",
    "wget --user=me:hunter2 https://example.org",
    "docker login -u me -p hunter2 registry.example.org",
    "echo hunter2 | docker login --password-stdin",
    "sshpass -p hunter2 ssh node",
    "mysqldump -u root -phunter2 runs",
    "curl -H 'Authorization: Basic aHVudGVyMjpodW50ZXIy' https://example.org",
]

NAMED = [
    "export HF_TOKEN=hunter2",
    "--api-key hunter2",
    "--password=hunter2",
    "DB_PASS=hunter2",
    "MY_PAT=hunter2",
    "PGPASS=hunter2",
    "export MYSQL_PWD=hunter2",
    "SSHPASS=hunter2 sshpass -e ssh node",
    "PGPASSWORD='hunter2'",
    "LDAP_BINDPW=hunter2",
    "cluster.environment={HF_TOKEN:hunter2,B:1}",
    "{'api_key': 'hunter2'}",
    "srun --export=ALL,WANDB_API_KEY=hunter2 env",
]
