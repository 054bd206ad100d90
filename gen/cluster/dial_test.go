package cluster_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atewf/atewf/gen/cluster"
	"github.com/atewf/atewf/internal/substrate"
)

// server is a Control API of a cluster that has nothing in it: every list is empty. It takes one token and does not
// describe itself.
type server struct {
	endpoint, ca string
	mu           sync.Mutex
	calls        []string
}

func serve(t *testing.T, token string) *server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "api"}, DNSNames: []string{substrate.ServerName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	s := &server{ca: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			s.mu.Lock()
			s.calls = append(s.calls, method)
			s.mu.Unlock()
			if !strings.HasPrefix(method, "/ateapi.Control/") {
				return status.Error(codes.Unimplemented, method)
			}
			if md, _ := metadata.FromIncomingContext(stream.Context()); len(md["authorization"]) != 1 || md["authorization"][0] != "Bearer "+token {
				return status.Error(codes.Unauthenticated, "who are you?")
			}
			if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
				return err
			}
			return stream.SendMsg(&emptypb.Empty{})
		}),
	)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.endpoint = l.Addr().String()
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return s
}

func bundle(name, signer, pem string) *certificatesv1beta1.ClusterTrustBundle {
	return &certificatesv1beta1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"podcert.ate.dev/canarying": "live"}},
		Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem},
	}
}

// tokens makes a fake API server hand out one token after the other, and counts them.
func tokens(kube *kubefake.Clientset, lifetime time.Duration, asked *[]authenticationv1.TokenRequestSpec, values ...string) {
	kube.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" || a.GetNamespace() != "ate-system" {
			return false, nil, nil
		}
		r := a.(clienttesting.CreateActionImpl).Object.(*authenticationv1.TokenRequest).DeepCopy()
		*asked = append(*asked, r.Spec)
		r.Status = authenticationv1.TokenRequestStatus{Token: values[len(*asked)-1], ExpirationTimestamp: metav1.NewTime(now.Add(lifetime))}
		return true, r, nil
	})
}

func read(t *testing.T, d cluster.Dialer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := d.Dial(ctx)
	if err != nil {
		return err
	}
	_, err = c.Workers(ctx)
	err = errors.Join(err, c.EachActor(ctx, func(substrate.Actor) error { return nil }))
	return errors.Join(err, c.Close())
}

func TestDialWithWhatTheClusterHas(t *testing.T) {
	s := serve(t, "token-1")
	kube := kubefake.NewSimpleClientset(
		bundle("servicedns.podcert.ate.dev:identity:primary-bundle", substrate.SignerName, s.ca+"\n\n"),
		bundle("other", "podidentity.podcert.ate.dev/identity", "not to be trusted"),
	)
	var asked []authenticationv1.TokenRequestSpec
	tokens(kube, time.Hour, &asked, "token-1")
	d := cluster.Dialer{Kube: kube, Namespace: "ate-system", Endpoint: s.endpoint, Audience: "api.ate-system.svc", Now: func() time.Time { return now }}
	require.NoError(t, read(t, d))
	require.Len(t, asked, 1, "one token serves until it ends")
	require.Equal(t, []string{"api.ate-system.svc"}, asked[0].Audiences)
	require.EqualValues(t, 3600, *asked[0].ExpirationSeconds)
	require.Contains(t, s.calls, "/ateapi.Control/ListWorkers")
	require.Contains(t, s.calls, "/ateapi.Control/ListActors")
}

func TestTokenIsRenewed(t *testing.T) {
	s := serve(t, "token-3")
	kube := kubefake.NewSimpleClientset(bundle("b", substrate.SignerName, s.ca))
	var asked []authenticationv1.TokenRequestSpec
	tokens(kube, 30*time.Second, &asked, "token-1", "token-2", "token-3", "token-3")
	d := cluster.Dialer{Kube: kube, Namespace: "ate-system", Endpoint: s.endpoint, Audience: "a", Now: func() time.Time { return now }}
	// One call to see whether there is a token at all, one for the description, then the lists.
	require.NoError(t, read(t, d))
	require.Len(t, asked, 4)
}

func TestDialWithFiles(t *testing.T) {
	s := serve(t, "from-file")
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	require.NoError(t, os.WriteFile(token, []byte("from-file\n"), 0o600))
	require.NoError(t, os.WriteFile(ca, []byte(s.ca), 0o600))
	require.NoError(t, read(t, cluster.Dialer{Kube: kubefake.NewSimpleClientset(), Namespace: "ate-system", Endpoint: s.endpoint, TokenFile: token, CAFile: ca}))
}

func TestDialFails(t *testing.T) {
	s := serve(t, "right")
	other := serve(t, "right") // of another authority
	api := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: "api"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "api"}, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromString("grpc")}},
	}}
	pod := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: name, Labels: map[string]string{"app": "api"}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
	}
	noSelector := api.DeepCopy()
	noSelector.Spec.Selector = nil
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("wrong"), 0o600))
	trusted := bundle("b", substrate.SignerName, s.ca)
	for name, c := range map[string]struct {
		objects []runtime.Object
		d       cluster.Dialer
		want    string
	}{
		"no bundle":         {nil, cluster.Dialer{}, "no ClusterTrustBundle with podcert.ate.dev/canarying=live is of the signer servicedns.podcert.ate.dev/identity; pass --ca-file"},
		"no CA file":        {nil, cluster.Dialer{CAFile: filepath.Join(dir, "nosuch")}, "reading --ca-file"},
		"CA file of no use": {nil, cluster.Dialer{CAFile: wrong, TokenFile: wrong, Endpoint: s.endpoint}, "no certificate in it"},
		"no token file":     {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: filepath.Join(dir, "nosuch")}, "reading --token-file"},
		"no service":        {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: wrong}, `finding the Control API: services "api" not found`},
		"no selector":       {[]runtime.Object{trusted, noSelector}, cluster.Dialer{TokenFile: wrong}, "Service ate-system/api selects no pods"},
		"no Ready pod":      {[]runtime.Object{trusted, api, pod("api-1", corev1.ConditionFalse)}, cluster.Dialer{TokenFile: wrong}, "none of the 1 pods of Service ate-system/api is Ready"},
		"no such port":      {[]runtime.Object{trusted, api, pod("api-1", corev1.ConditionTrue)}, cluster.Dialer{TokenFile: wrong}, `pod ate-system/api-1 has no port "grpc"`},
		"wrong token":       {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: wrong, Endpoint: s.endpoint}, "who are you?"},
		"wrong authority":   {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: wrong, Endpoint: other.endpoint}, "certificate"},
		"wrong name":        {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: wrong, Endpoint: s.endpoint, ServerName: "other.svc"}, "other.svc"},
		"nobody there":      {[]runtime.Object{trusted}, cluster.Dialer{TokenFile: wrong, Endpoint: "127.0.0.1:1"}, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c.d.Kube, c.d.Namespace = kubefake.NewSimpleClientset(c.objects...), "ate-system"
			require.ErrorContains(t, read(t, c.d), c.want)

			// None of these is worth stopping for where the Control API is read only if it can be.
			o := options(control{})
			o.Dial = c.d.Dial
			s, err := cluster.New(kubefake.NewSimpleClientset(), dynamicClient(), o).Read(context.Background())
			if name == "CA file of no use" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Contains(t, s.Control.Why, c.want)
		})
	}
}
