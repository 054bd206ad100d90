package substrate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

//go:embed control.proto
var builtIn string

const serviceName = "ateapi.Control"

// schema is a Control API as one server describes it.
type schema struct {
	service   protoreflect.ServiceDescriptor
	reflected bool
	accept    []string
}

// learn asks the server for its descriptors. Only "unimplemented" leads to the built-in ones: any other failure may
// pass, and built-in descriptors know less.
func learn(ctx context.Context, conn *grpc.ClientConn, accept []string) (*schema, error) {
	s := &schema{reflected: true, accept: accept}
	svc, err := reflected(ctx, conn)
	if status.Code(err) == codes.Unimplemented {
		s.reflected = false
		svc, err = compiled(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.service = svc
	return s, s.check()
}

// compiled reads the built-in description.
func compiled(ctx context.Context) (protoreflect.ServiceDescriptor, error) {
	const file = "control.proto"
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{file: builtIn})}}
	files, err := c.Compile(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("reading the built-in description of the control API: %w", err)
	}
	return files[0].Services().ByName("Control"), nil
}

// reflected asks for the file that defines the service and for every file that it needs.
func reflected(ctx context.Context, conn *grpc.ClientConn) (protoreflect.ServiceDescriptor, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := reflectpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx, grpc.WaitForReady(false))
	if err != nil {
		return nil, fmt.Errorf("asking for its description: %w", err)
	}
	files := map[string]*descriptorpb.FileDescriptorProto{}
	ask := func(req *reflectpb.ServerReflectionRequest) error {
		if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("asking for its description: %w", err)
		}
		resp, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("asking for its description: %w", err)
		}
		if e := resp.GetErrorResponse(); e != nil {
			return fmt.Errorf("it does not describe %s: %s; is this Agent Substrate?", serviceName, e.GetErrorMessage())
		}
		for _, raw := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
			fd := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(raw, fd); err != nil {
				return fmt.Errorf("reading its description: %w", err)
			}
			files[fd.GetName()] = fd
		}
		return nil
	}
	if err := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: serviceName}}); err != nil {
		return nil, err
	}
	for {
		missing := missingFiles(files)
		if len(missing) == 0 {
			break
		}
		for _, name := range missing {
			if fd, err := protoregistry.GlobalFiles.FindFileByPath(name); err == nil {
				files[name] = protodesc.ToFileDescriptorProto(fd)
				continue
			}
			if err := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileByFilename{FileByFilename: name}}); err != nil {
				return nil, err
			}
			if files[name] == nil {
				return nil, fmt.Errorf("its description needs %s and does not hold it", name)
			}
		}
	}
	set := &descriptorpb.FileDescriptorSet{}
	for _, fd := range files {
		set.File = append(set.File, fd)
	}
	reg, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("reading its description: %w", err)
	}
	d, err := reg.FindDescriptorByName(serviceName)
	if err != nil {
		return nil, fmt.Errorf("its description has no %s; is this Agent Substrate?", serviceName)
	}
	svc, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("its description has %s, but not as a service; is this Agent Substrate?", serviceName)
	}
	return svc, nil
}

// missingFiles lists the imports that are not there yet.
func missingFiles(files map[string]*descriptorpb.FileDescriptorProto) []string {
	var out []string
	for _, fd := range files {
		for _, dep := range fd.GetDependency() {
			if files[dep] == nil && !slices.Contains(out, dep) {
				out = append(out, dep)
			}
		}
	}
	return out
}

func (s *schema) method(name string) (protoreflect.MethodDescriptor, error) {
	m := s.service.Methods().ByName(protoreflect.Name(name))
	if m == nil {
		return nil, status.Errorf(codes.Unimplemented, "the control API has no %s; this release of Agent Substrate cannot be rolled by this version of atewf", name)
	}
	return m, nil
}

// check makes sure that the questions a roll depends on can be answered at all: where a worker is, what state an actor
// is in, which worker it is bound to, and on which node a paused one lies.
func (s *schema) check() error {
	need := func(method string, list protoreflect.Name, paths ...string) error {
		md, err := s.method(method)
		if err != nil {
			return err
		}
		msg := md.Output()
		if list != "" {
			f := msg.Fields().ByName(list)
			if f == nil || f.Message() == nil {
				return fmt.Errorf("the answer of %s has no %q; this version of atewf does not know this release of Agent Substrate", method, list)
			}
			msg = f.Message()
		}
		for _, alternatives := range paths {
			ok := slices.ContainsFunc(strings.Split(alternatives, "|"), func(p string) bool { return hasPath(msg, p) })
			if !ok {
				return fmt.Errorf("%s has no field %s, so nobody can tell who is on a node; this version of atewf does not know this release of Agent Substrate",
					msg.Name(), strings.ReplaceAll(alternatives, "|", " or "))
			}
		}
		return nil
	}
	return errors.Join(
		need("ListActors", "actors", "metadata.atespace", "metadata.name", "status.state",
			"status.worker_assignment.worker.name|status.worker_assignment.worker_pod_uid",
			"status.local_snapshot_info.node_vms_with_local_snapshots|status.local_snapshot.node_vms_with_local_snapshots|status.assigned_node"),
		need("ListWorkers", "workers", "metadata.name", "node_name", "status.state"),
		need("DrainWorker", ""), need("SuspendActor", "", "actor"), need("GetActor", ""),
	)
}

func hasPath(msg protoreflect.MessageDescriptor, path string) bool {
	parts := strings.Split(path, ".")
	for i, p := range parts {
		f := msg.Fields().ByName(protoreflect.Name(p))
		if f == nil {
			return false
		}
		if i == len(parts)-1 {
			return true
		}
		if msg = f.Message(); msg == nil {
			return false
		}
	}
	return true
}

// known lists the fields, of the messages that say where an actor is, whose meaning was taken into account. A field that
// is filled in and not listed may say that an actor is on a node after all, so a roll stops at it.
var known = map[protoreflect.Name][]string{
	"ActorStatus": {"state", "worker_assignment", "in_progress_snapshot_name", "in_progress_snapshot_uri", "latest_snapshot",
		"external_snapshot", "local_snapshot_info", "local_snapshot", "in_progress_snapshot_source_actor_version", "actor_volumes",
		"in_progress_local_snapshot_name", "source_snapshot", "crash", "current_actor_template_uid", "snapshots", "assigned_node"},
	"WorkerAssignment": {"worker_namespace", "worker_pool", "worker_pod", "worker_pod_uid", "worker_pod_ip", "worker_pod_ips", "worker", "node_name", "worker_epoch"},
	"WorkerStatus":     {"state", "assignment", "capacity", "allocated", "observed_epoch", "capacity_or_assignment"},
}

// UnknownFieldError says that the server answered with something whose meaning is not known.
type UnknownFieldError struct {
	Object, Field string
}

func (e *UnknownFieldError) Error() string {
	return fmt.Sprintf("%s carries %s, which this version of atewf does not know and which may matter; use a newer atewf, or pass --accept-field=%s after finding out that it does not", e.Object, e.Field, e.Field)
}

// inspect stops at fields that are filled in and not known.
func (s *schema) inspect(object string, m protoreflect.Message) error {
	name := m.Descriptor().Name()
	var unknown string
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		n := string(f.Name())
		if !slices.Contains(known[name], n) && !slices.Contains(s.accept, string(name)+"."+n) {
			unknown = string(name) + "." + n
			return false
		}
		return true
	})
	if unknown == "" && len(m.GetUnknown()) > 0 {
		unknown = string(name) + ".?"
		if slices.Contains(s.accept, unknown) {
			unknown = ""
		}
	}
	if unknown != "" {
		return &UnknownFieldError{Object: object, Field: unknown}
	}
	return nil
}

func (s *schema) actor(m protoreflect.Message) (Actor, error) {
	meta := sub(m, "metadata")
	a := Actor{Ref: Ref{Atespace: str(meta, "atespace"), Name: str(meta, "name")}, UID: str(meta, "uid")}
	if a.Name == "" {
		return a, errors.New("the control API shows an actor without a name")
	}
	st := sub(m, "status")
	if st == nil {
		return a, fmt.Errorf("actor %s has no status, so nobody can tell where it is", a.Ref)
	}
	if err := s.inspect("actor "+a.Ref.String(), st); err != nil {
		return a, err
	}
	a.State = ActorState(enum(st, "state", "ACTOR_STATE_"))
	if wa := sub(st, "worker_assignment"); wa != nil {
		if err := s.inspect("actor "+a.Ref.String(), wa); err != nil {
			return a, err
		}
		a.Worker = str(sub(wa, "worker"), "name")
		a.WorkerPodUID = str(wa, "worker_pod_uid")
		a.WorkerNode = str(wa, "node_name")
		if !a.Bound() {
			return a, fmt.Errorf("actor %s is assigned to a worker that the control API does not name; wait until it settles and try again", a.Ref)
		}
	}
	for _, f := range []protoreflect.Name{"local_snapshot_info", "local_snapshot"} {
		if ls := sub(st, f); ls != nil {
			a.SnapshotNodes = append(a.SnapshotNodes, strs(ls, "node_vms_with_local_snapshots")...)
		}
	}
	a.AssignedNode = str(st, "assigned_node")
	a.Selector = stringMap(sub(m, "worker_selector"), "match_labels")
	return a, nil
}

func (s *schema) worker(m protoreflect.Message) (Worker, error) {
	w := Worker{
		Name:      str(sub(m, "metadata"), "name"),
		Namespace: str(m, "worker_namespace"),
		Pool:      str(m, "worker_pool"),
		Pod:       str(m, "worker_pod"),
		PodUID:    str(m, "worker_pod_uid"),
		Node:      str(m, "node_name"),
		Class:     str(m, "sandbox_class"),
		Labels:    stringMap(m, "labels"),
		Capacity:  1,
	}
	if w.Name == "" {
		return w, errors.New("the control API shows a worker without a name")
	}
	st := sub(m, "status")
	if st == nil {
		return w, fmt.Errorf("%s has no status, so nobody can tell whether it takes actors", w)
	}
	if err := s.inspect(w.String(), st); err != nil {
		return w, err
	}
	w.State = WorkerState(enum(st, "state", "WORKER_STATE_"))
	if c := sub(st, "capacity"); c != nil {
		w.Capacity = num(c, "actors")
	}
	if al := sub(st, "allocated"); al != nil {
		w.Claimed = num(al, "actors")
	}
	if as := sub(st, "assignment"); as != nil {
		w.Claimed = max(w.Claimed, 1)
		if ref := sub(as, "actor"); ref != nil {
			w.ClaimedActor = Ref{Atespace: str(ref, "atespace"), Name: str(ref, "name")}.String()
		}
	}
	return w, nil
}

// sub returns a message field that is there and set, nil otherwise.
func sub(m protoreflect.Message, name protoreflect.Name) protoreflect.Message {
	f := field(m, name)
	if f == nil || f.Message() == nil || f.IsList() || f.IsMap() || !m.Has(f) {
		return nil
	}
	return m.Get(f).Message()
}

func field(m protoreflect.Message, name protoreflect.Name) protoreflect.FieldDescriptor {
	if m == nil {
		return nil
	}
	return m.Descriptor().Fields().ByName(name)
}

func str(m protoreflect.Message, name protoreflect.Name) string {
	f := field(m, name)
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return ""
	}
	return m.Get(f).String()
}

func strs(m protoreflect.Message, name protoreflect.Name) []string {
	f := field(m, name)
	if f == nil || f.Kind() != protoreflect.StringKind || !f.IsList() {
		return nil
	}
	list := m.Get(f).List()
	out := make([]string, list.Len())
	for i := range out {
		out[i] = list.Get(i).String()
	}
	return out
}

func num(m protoreflect.Message, name protoreflect.Name) int32 {
	f := field(m, name)
	if f == nil || f.IsList() || f.Kind() != protoreflect.Int32Kind && f.Kind() != protoreflect.Int64Kind {
		return 0
	}
	return int32(m.Get(f).Int())
}

// enum returns the name of an enum value without its prefix, or its number where the descriptor has no name for it.
func enum(m protoreflect.Message, name protoreflect.Name, prefix string) string {
	f := field(m, name)
	if f == nil || f.Enum() == nil {
		return ""
	}
	n := m.Get(f).Enum()
	v := f.Enum().Values().ByNumber(n)
	if v == nil {
		return fmt.Sprint(n)
	}
	return strings.TrimPrefix(string(v.Name()), prefix)
}

func stringMap(m protoreflect.Message, name protoreflect.Name) map[string]string {
	f := field(m, name)
	if f == nil || !f.IsMap() || f.MapValue().Kind() != protoreflect.StringKind {
		return nil
	}
	src := m.Get(f).Map()
	if src.Len() == 0 {
		return nil
	}
	out := make(map[string]string, src.Len())
	src.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		out[k.String()] = v.String()
		return true
	})
	return out
}
