package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/internal/substrate"
)

const (
	// service is the headless Service of the Control API, client the ServiceAccount that people's tools use.
	service = "api"
	client  = "ate-client"
	port    = 443
)

// Dialer connects to the Control API from outside the cluster. What is not given, it finds in the cluster: without
// Endpoint it forwards a port through the API server, without TokenFile it asks for a token of ate-client, without
// CAFile it reads the ClusterTrustBundles.
type Dialer struct {
	Kube   kubernetes.Interface
	Config *rest.Config
	// Namespace is where Agent Substrate is installed.
	Namespace string
	// Endpoint is host:port.
	Endpoint          string
	TokenFile, CAFile string
	// ServerName is the name on the certificate, Audience that of a token that is asked for.
	ServerName, Audience string
	// AcceptFields are passed on to the client.
	AcceptFields []string
	Now          func() time.Time
}

// Dial connects. The connection must be closed.
func (d Dialer) Dial(ctx context.Context) (Control, error) {
	ca, err := d.authority(ctx)
	if err != nil {
		return nil, notThere{err}
	}
	token := d.tokens()
	if _, err := token(ctx); err != nil {
		return nil, notThere{err}
	}
	endpoint, stop := d.Endpoint, func() {}
	if endpoint == "" {
		if endpoint, stop, err = d.forward(ctx); err != nil {
			return nil, notThere{err}
		}
	}
	c, err := substrate.Dial(ctx, substrate.Options{Endpoint: endpoint, Name: d.ServerName, CA: ca, Token: token, AcceptFields: d.AcceptFields})
	if err != nil {
		stop()
		return nil, err
	}
	return &connection{Client: c, stop: stop}, nil
}

// connection closes what was opened for it as well.
type connection struct {
	*substrate.Client
	stop func()
}

// Close ends the connection and the port-forward below it.
func (c *connection) Close() error {
	defer c.stop()
	return c.Client.Close()
}

// authority is the PEM of the authorities that sign the Control API's certificate.
func (d Dialer) authority(ctx context.Context) ([]byte, error) {
	if d.CAFile != "" {
		b, err := os.ReadFile(d.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --ca-file: %w", err)
		}
		return b, nil
	}
	l, err := d.Kube.CertificatesV1beta1().ClusterTrustBundles().List(ctx, metav1.ListOptions{LabelSelector: substrate.BundleSelector})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("the API server serves no ClusterTrustBundles (certificates.k8s.io/v1beta1); pass --ca-file")
	}
	if err != nil {
		return nil, fmt.Errorf("listing the ClusterTrustBundles: %w", err)
	}
	var out bytes.Buffer
	for _, b := range l.Items {
		if b.Spec.SignerName == substrate.SignerName {
			out.WriteString(strings.TrimSpace(b.Spec.TrustBundle) + "\n")
		}
	}
	if out.Len() == 0 {
		return nil, fmt.Errorf("no ClusterTrustBundle with %s is of the signer %s; pass --ca-file", substrate.BundleSelector, substrate.SignerName)
	}
	return out.Bytes(), nil
}

// tokens returns what gives the token of the moment: the file's, or one of ate-client that is renewed before it ends.
func (d Dialer) tokens() func(context.Context) (string, error) {
	if d.TokenFile != "" {
		return func(context.Context) (string, error) {
			b, err := os.ReadFile(d.TokenFile)
			if err != nil {
				return "", fmt.Errorf("reading --token-file: %w", err)
			}
			return strings.TrimSpace(string(b)), nil
		}
	}
	var (
		mu    sync.Mutex
		token string
		until time.Time
	)
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != "" && d.Now().Before(until) {
			return token, nil
		}
		r, err := d.Kube.CoreV1().ServiceAccounts(d.Namespace).CreateToken(ctx, client, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{Audiences: []string{d.Audience}, ExpirationSeconds: ptr.To(int64(time.Hour / time.Second))},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("asking for a token of ServiceAccount %s/%s: %w", d.Namespace, client, err)
		}
		token, until = r.Status.Token, r.Status.ExpirationTimestamp.Add(-time.Minute)
		return token, nil
	}
}

// forward opens a port on the loopback interface that leads to a Ready pod of the Control API.
func (d Dialer) forward(ctx context.Context) (endpoint string, stop func(), err error) {
	pod, target, err := d.pod(ctx)
	if err != nil {
		return "", nil, err
	}
	url := d.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(d.Namespace).Name(pod).SubResource("portforward").URL()
	dialer, err := d.dialer(url.String())
	if err != nil {
		return "", nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", d.Namespace, pod, err)
	}
	stopCh, ready := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop = func() { once.Do(func() { close(stopCh) }) }
	fw, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", target)}, stopCh, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", d.Namespace, pod, err)
	}
	failed := make(chan error, 1)
	go func() { failed <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		return "", nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", d.Namespace, pod, err)
	case <-ctx.Done():
		stop()
		return "", nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", d.Namespace, pod, ctx.Err())
	}
	ports, err := fw.GetPorts()
	if err != nil || len(ports) != 1 {
		stop()
		return "", nil, fmt.Errorf("forwarding a port to pod %s/%s: which one was opened is not known: %w", d.Namespace, pod, err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), stop, nil
}

// dialer speaks WebSocket to the API server, and SPDY to one that is too old for it, as kubectl does.
func (d Dialer) dialer(target string) (httpstream.Dialer, error) {
	req, err := http.NewRequest(http.MethodPost, target, nil)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(d.Config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, req.URL)
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(req.URL, d.Config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(tunnel, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// pod finds a Ready pod behind the Service, and the port that it listens on.
func (d Dialer) pod(ctx context.Context) (name string, target int32, err error) {
	svc, err := d.Kube.CoreV1().Services(d.Namespace).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return "", 0, fmt.Errorf("finding the Control API: %w", err)
	}
	if len(svc.Spec.Selector) == 0 {
		return "", 0, fmt.Errorf("finding the Control API: Service %s/%s selects no pods", d.Namespace, service)
	}
	pods, err := d.Kube.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(svc.Spec.Selector).String()})
	if err != nil {
		return "", 0, fmt.Errorf("finding the Control API: listing the pods of Service %s/%s: %w", d.Namespace, service, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				t, err := targetPort(svc, p)
				return p.Name, t, err
			}
		}
	}
	return "", 0, fmt.Errorf("finding the Control API: none of the %d pods of Service %s/%s is Ready", len(pods.Items), d.Namespace, service)
}

// targetPort is the port of a pod to which the Service's own leads.
func targetPort(svc *corev1.Service, pod *corev1.Pod) (int32, error) {
	target := intstr.FromInt32(port)
	for _, p := range svc.Spec.Ports {
		if p.Port == port && (p.TargetPort.Type == intstr.String || p.TargetPort.IntVal != 0) {
			target = p.TargetPort
		}
	}
	if target.Type == intstr.Int {
		return target.IntVal, nil
	}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == target.StrVal {
				return p.ContainerPort, nil
			}
		}
	}
	return 0, fmt.Errorf("finding the Control API: pod %s/%s has no port %q", pod.Namespace, pod.Name, target.StrVal)
}
