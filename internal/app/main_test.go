package app_test

import (
	"os"
	"testing"

	"patchbay/internal/fake"
	"patchbay/internal/secret"
)

// TestMain sets what configs of tests name, once: what sets it for itself cannot run beside
// others.
func TestMain(m *testing.M) {
	env := map[string]string{"FAKE_KEY": "k", "SLACK_APP": fake.SlackApp, "SLACK_BOT": fake.SlackBot}
	secret.GenerateKey().Expose(func(k string) { env["REPLICA_KEYS"] = k })
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
