//go:build !bed

package bed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The one binary that holds all of Kubernetes has to pass for the separate ones that envtest starts.
func TestEnvtestStartsFromTheBedsBinary(t *testing.T) {
	assets, err := Assets()
	require.NoError(t, err)
	env := &envtest.Environment{BinaryAssetsDirectory: assets}
	begun := time.Now()
	config, err := env.Start()
	require.NoError(t, err, "build it with: test/bed/bed build")
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	t.Logf("the API server was ready after %v", time.Since(begun).Round(time.Millisecond))

	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	version, err := client.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Equal(t, "v1.34.4", version.GitVersion)

	// It is a real API server: it gives objects a UID and keeps them.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	created, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, created.UID)
	read, err := client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created.UID, read.UID)
}
